"""Hopper: hop forward without falling; data of one hopper, with less and more noise."""
