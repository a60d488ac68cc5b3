"""Muninn: certified caching for trajectory diffusion. The public verbs, and nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muninn.adapters import disable_cache, enable_cache, is_cache_enabled
    from muninn.cached import CachedPlanner, cache
    from muninn.certificate import Certificate
    from muninn.certify import calibrate
    from muninn.errors import MuninnError
    from muninn.escalation import Escalation
    from muninn.fleet import Fleet
    from muninn.monitor import Monitor
    from muninn.monitored import Monitored
    from muninn.planner import Planner
    from muninn.record import Record
    from muninn.schedule import Schedule
    from muninn.solvers import ddim, ddpm, euler
    from muninn.supervisor import Observation, Supervisor
    from muninn.tuning import tune
    from muninn.units import Episodes

_HOME = {
    "CachedPlanner": "cached",
    "Certificate": "certificate",
    "Episodes": "units",
    "Escalation": "escalation",
    "Fleet": "fleet",
    "Monitor": "monitor",
    "Monitored": "monitored",
    "MuninnError": "errors",
    "Observation": "supervisor",
    "Planner": "planner",
    "Record": "record",
    "Schedule": "schedule",
    "Supervisor": "supervisor",
    "cache": "cached",
    "calibrate": "certify",
    "ddim": "solvers",
    "ddpm": "solvers",
    "disable_cache": "adapters",
    "enable_cache": "adapters",
    "euler": "solvers",
    "is_cache_enabled": "adapters",
    "tune": "tuning",
}

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
