"""Robots that fly while they plan: planning takes simulated time, and a slow plan is an old one."""
