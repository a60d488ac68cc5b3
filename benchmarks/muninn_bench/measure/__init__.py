"""Timing in turns, paired runs, methods, statistics."""
