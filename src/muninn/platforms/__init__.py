"""Robots in simulation: worlds, controllers and planners for the closed loop."""
