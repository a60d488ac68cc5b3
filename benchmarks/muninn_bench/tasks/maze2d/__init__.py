"""Maze2D, the large layout."""
