"""How a trained network becomes a planner."""
