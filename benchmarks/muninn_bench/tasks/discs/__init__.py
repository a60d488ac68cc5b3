"""A point that passes a disc on the left or on the right: the smallest task with two ways."""
