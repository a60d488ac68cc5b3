"""Worlds, networks, training, studies and reports around Muninn."""
