"""Meta-World pick-place: a real policy of LeRobot's class, its data, training and study."""
