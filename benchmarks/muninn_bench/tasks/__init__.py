"""Benchmark tasks, one folder each."""
