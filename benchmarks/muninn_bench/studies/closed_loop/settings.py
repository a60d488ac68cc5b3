"""How much a closed-loop study runs, and what is promised on each platform."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from muninn_bench.studies.closed_loop.methods import METHODS

TOLERANCES = {"maze2d": 0.05, "crazyflie": 0.05, "asv": 0.5}
"""Metres that a cached plan may be away from the full one, at its worst frame."""


@dataclass(frozen=True)
class Settings:
    """Numbers of a study.

    Attributes:
        tolerance: metres.
        risk: share of calls that may exceed it.
        scouts: episodes to draw calibration calls from, one each.
        timed: single jobs timed for each program.
        episodes: of each method.
        methods: which.
        live: episodes flown at once.
        processes: that share the episodes.
        seed: of the calibration; episodes have seeds of their own.
    """

    tolerance: float
    risk: float = 0.05
    scouts: int = 400
    timed: int = 200
    episodes: int = 150
    methods: tuple[str, ...] = tuple(METHODS)
    live: int = 48
    processes: int = field(default_factory=lambda: os.cpu_count() or 2)
    seed: int = 0


def settings_for(platform: str, quick: bool = False) -> Settings:
    """The settings of a platform; in miniature for a smoke test."""
    full = Settings(TOLERANCES.get(platform, 0.05))
    if not quick:
        return full
    return replace(full, scouts=120, timed=12, episodes=8, live=8, processes=1)
