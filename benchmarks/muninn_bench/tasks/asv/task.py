"""Steer a surface vessel across a lake in wind and current, replanned every second."""

from muninn_bench.tasks.asv.platform import AsvPlatform
from muninn_bench.tasks.flown import FlownTask

TASK = FlownTask("asv", AsvPlatform.tolerance, AsvPlatform)
