"""Muninn: certified caching for trajectory diffusion. The public verbs, and nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muninn.adapters import disable_cache, enable_cache, is_cache_enabled
    from muninn.certify.cached import CachedPlanner, cache
    from muninn.certify.calibrate import calibrate
    from muninn.certify.certificate import Certificate
    from muninn.certify.evaluate import evaluate
    from muninn.certify.tune import tune
    from muninn.certify.units import Episodes
    from muninn.errors import MuninnError
    from muninn.loop.escalation import Escalation
    from muninn.loop.supervisor import Observation, Supervisor
    from muninn.model.planner import Planner
    from muninn.model.schedule import Schedule
    from muninn.model.solvers import ddim, ddpm, euler
    from muninn.monitor.fleet import Fleet
    from muninn.monitor.monitor import Monitor
    from muninn.monitor.monitored import Monitored
    from muninn.record import Record

_HOMES = {
    "adapters": ("disable_cache", "enable_cache", "is_cache_enabled"),
    "certify.cached": ("CachedPlanner", "cache"),
    "certify.calibrate": ("calibrate",),
    "certify.certificate": ("Certificate",),
    "certify.evaluate": ("evaluate",),
    "certify.tune": ("tune",),
    "certify.units": ("Episodes",),
    "errors": ("MuninnError",),
    "loop.escalation": ("Escalation",),
    "loop.supervisor": ("Observation", "Supervisor"),
    "model.planner": ("Planner",),
    "model.schedule": ("Schedule",),
    "model.solvers": ("ddim", "ddpm", "euler"),
    "monitor.fleet": ("Fleet",),
    "monitor.monitor": ("Monitor",),
    "monitor.monitored": ("Monitored",),
    "record": ("Record",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CachedPlanner",
    "Certificate",
    "Episodes",
    "Escalation",
    "Fleet",
    "Monitor",
    "Monitored",
    "MuninnError",
    "Observation",
    "Planner",
    "Record",
    "Schedule",
    "Supervisor",
    "cache",
    "calibrate",
    "ddim",
    "ddpm",
    "disable_cache",
    "enable_cache",
    "euler",
    "evaluate",
    "is_cache_enabled",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load a verb on first use, so that a training script does not pay for scipy."""
    if name not in _HOME:
        raise AttributeError(f"module 'muninn' has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(f"muninn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
