"""Muninn: certified caching for trajectory diffusion. The public verbs, and nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muninn.adapters import disable_cache as disable_cache
    from muninn.adapters import enable_cache as enable_cache
    from muninn.adapters import is_cache_enabled as is_cache_enabled
    from muninn.certify.cached import CachedPlanner as CachedPlanner
    from muninn.certify.cached import cache as cache
    from muninn.certify.calibrate import calibrate as calibrate
    from muninn.certify.certificate import Certificate as Certificate
    from muninn.certify.evaluate import evaluate as evaluate
    from muninn.certify.outcomes import Outcomes as Outcomes
    from muninn.certify.survey import survey as survey
    from muninn.certify.tune import tune as tune
    from muninn.certify.units import Episodes as Episodes
    from muninn.errors import MuninnError as MuninnError
    from muninn.loop.escalation import Escalation as Escalation
    from muninn.loop.supervisor import Observation as Observation
    from muninn.loop.supervisor import Supervisor as Supervisor
    from muninn.model.planner import Planner as Planner
    from muninn.model.schedule import Schedule as Schedule
    from muninn.model.solvers import ddim as ddim
    from muninn.model.solvers import ddpm as ddpm
    from muninn.model.solvers import euler as euler
    from muninn.monitor.fleet import Fleet as Fleet
    from muninn.monitor.monitor import Monitor as Monitor
    from muninn.monitor.monitored import Monitored as Monitored
    from muninn.record import Record as Record

_HOMES = {
    "adapters": ("disable_cache", "enable_cache", "is_cache_enabled"),
    "certify.cached": ("CachedPlanner", "cache"),
    "certify.calibrate": ("calibrate",),
    "certify.certificate": ("Certificate",),
    "certify.evaluate": ("evaluate",),
    "certify.outcomes": ("Outcomes",),
    "certify.survey": ("survey",),
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

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Load a verb on first use, so that a training script does not pay for scipy."""
    if name not in _HOME:
        raise AttributeError(f"module 'muninn' has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(f"muninn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
