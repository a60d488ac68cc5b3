"""Cheaper ways to run a planner: which steps are evaluated, and what stands in at the others."""
