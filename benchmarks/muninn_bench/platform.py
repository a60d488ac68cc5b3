"""What a closed loop needs of a robot: episodes on a simulated clock, and a planner for them.

The loop (:mod:`muninn_bench.studies.closed_loop`) takes a context, plans, lets the simulated clock
run for as long as planning took, while the robot goes on with what it had, and then hands over the
new plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric
from muninn.context import Context
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray

Outcome = Literal["success", "collision", "timeout"]

STUDIED, SCOUTED = 1_000_000, 2_000_000
"""First seeds of the episodes that a study flies, and of those that a certificate is made from."""


@dataclass(frozen=True)
class Snapshot:
    """A moment, as a viewer wants it."""

    time: float  # simulated seconds since the episode began
    position: FloatArray  # of the robot, world units, (2,) or (3,)
    clearance: float  # metres to the nearest obstacle, negative inside it
    to_goal: float  # metres


class Episode(Protocol):
    """One run of the robot, from a start to an outcome, on a simulated clock."""

    time: float  # simulated seconds since it began
    outcome: Outcome | None  # how it ended; None while it runs
    goal: FloatArray  # world units
    smallest_clearance: float  # so far, metres

    def context(self) -> Tensor:
        """What the planner is asked, from what the robot senses now: one row."""
        ...

    def follow(self, plan: Tensor, taken: float, factor: float = 1.0) -> None:
        """Track a plan from now on.

        Args:
            plan: the planner's, (horizon, dim), in its own normalised units.
            taken: simulated time of the context that it was made for: the plan's first frame. A
                plan that took long is joined where it would have been by now.
            factor: damps commands, which are saturated after it; with a reference in time, the
                plan is followed at this share of its speed.
        """
        ...

    def hold(self) -> None:
        """The platform's safety action from now on: hover, or stop and hold."""
        ...

    def advance(self, seconds: float) -> None:
        """Simulate with the plan, or the hold, in force; stops where the episode ends."""
        ...

    def snapshot(self) -> Snapshot:
        """The present moment."""
        ...


class Platform(Protocol):
    """A robot, its world and its planner."""

    name: str  # of its folders under ``models`` and ``results/closed-loop``
    planner: Planner  # full compute, the bundled teacher's
    period: float  # seconds between planning calls
    candidates: int  # new samples of an escalated call, as the paper's for the platform
    tolerance: float  # metres that a cached plan may be away from the full one, at its worst frame

    def begin(self, seed: int) -> Episode:
        """A fresh episode: start, goal, disturbances and sensor noise drawn from the seed."""
        ...

    def screen(self, plan: Tensor, context: Context) -> bool:
        """May the robot execute this plan, (horizon, dim)? A geometric check on the known map."""
        ...

    def path(self, plan: Tensor) -> FloatArray:
        """A plan's positions in world units, (horizon, 2) or (horizon, 3)."""
        ...

    def outlines(self) -> list[FloatArray]:
        """Lines of walls, shores and obstacles, each (points, 2 or 3), for pictures."""
        ...


def position_metric(platform: Platform) -> Metric:
    """Largest distance in metres between the positions of two plans at the same frame."""
    metric = partial(_largest_distance_m, platform)
    metric.__qualname__ = "largest_distance_m"  # type: ignore[attr-defined]
    return metric


def _largest_distance_m(platform: Platform, full: Tensor, cached: Tensor) -> Tensor:
    apart = [
        np.linalg.norm(platform.path(one) - platform.path(other), axis=1).max()
        for one, other in zip(full.cpu(), cached.cpu(), strict=True)
    ]
    return torch.tensor(np.array(apart))
