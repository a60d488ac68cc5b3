"""A surface vessel on a lake, in simulation: dynamics, sensors, filter, control and planner."""

from muninn_bench.tasks.asv.platform import AsvPlatform

__all__ = ["AsvPlatform"]
