"""A surface vessel on a lake, in simulation: dynamics, sensors, filter, control and planner."""
