"""Platforms by name, imported when asked for: each needs packages of its own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from muninn.errors import InputError
from muninn_bench.platform import Platform


@dataclass(frozen=True)
class _Entry:
    module: str
    factory: str
    extra: str


_PLATFORMS = {
    "maze2d": _Entry("muninn_bench.tasks.maze2d.flight", "MazePlatform", "bench"),
    "crazyflie": _Entry("muninn_bench.tasks.crazyflie.navigation", "Crazyflie", "fly"),
    "asv": _Entry("muninn_bench.tasks.asv.platform", "AsvPlatform", "fly"),
}

NAMES = tuple(_PLATFORMS)


def load_platform(name: str) -> Platform:
    """Build the platform of a name, with its bundled planner.

    Raises:
        InputError: no such platform, or a package or teacher that it needs is missing.
    """
    if name not in _PLATFORMS:
        raise InputError(f"no platform {name!r}; choose from {', '.join(NAMES)}")
    entry = _PLATFORMS[name]
    try:
        made: Platform = getattr(import_module(entry.module), entry.factory)()
    except ImportError as error:
        raise InputError(
            f"the platform {name} needs packages that are missing ({error}); install them with "
            f"pip install 'muninn-diffusion[{entry.extra}]'"
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"the platform {name} has no planner yet: {error}") from error
    return made
