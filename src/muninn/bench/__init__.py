"""Benchmark worlds: problems, data, and closed-loop checks that a plan works."""
