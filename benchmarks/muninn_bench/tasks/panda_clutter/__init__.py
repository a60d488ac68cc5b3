"""A Panda among boxes: joint-space paths from a start to a goal, planned around the clutter."""
