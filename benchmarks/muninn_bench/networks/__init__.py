"""Planner networks, their training, and their files."""
