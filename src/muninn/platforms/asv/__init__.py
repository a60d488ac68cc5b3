"""A surface vessel on a lake, in simulation: dynamics, sensors, filter, control and planner."""

from muninn.platforms.asv.platform import AsvPlatform

__all__ = ["AsvPlatform"]
