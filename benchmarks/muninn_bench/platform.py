"""What a closed loop needs of a robot: episodes on a simulated clock, and a planner for them.

The loop itself (:mod:`muninn_bench.studies.closed_loop`) asks an episode for a context, plans, lets the
simulated clock run for as long as planning took, while the robot goes on with what it had, and then
hands over the new plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muninn.context import Context
from muninn.model.planner import Planner

FloatArray = NDArray[np.float64]
Outcome = Literal["success", "collision", "timeout"]


@dataclass(frozen=True)
class Snapshot:
    """What a viewer wants to know of a moment.

    Attributes:
        time: simulated seconds since the episode began.
        position: of the robot, world units, (2,) or (3,).
        clearance: metres to the nearest obstacle, negative inside it.
        to_goal: metres to the goal.
    """

    time: float
    position: FloatArray
    clearance: float
    to_goal: float


class Episode(Protocol):
    """One run of the robot, from a start to an outcome, on a simulated clock.

    Attributes:
        time: simulated seconds since the episode began.
        outcome: how it ended; None while it runs.
        goal: world units.
        smallest_clearance: of the whole episode so far, metres.
    """

    time: float
    outcome: Outcome | None
    goal: FloatArray
    smallest_clearance: float

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
    """A robot, its world and its planner.

    Attributes:
        name: for options and tables.
        planner: full compute, the bundled teacher's.
        period: seconds between planning calls.
        candidates: new samples of an escalated call, as the paper's for the platform.
    """

    name: str
    planner: Planner
    period: float
    candidates: int

    def begin(self, seed: int) -> Episode:
        """A fresh episode: start, goal, disturbances and sensor noise drawn from the seed."""
        ...

    def screen(self, plan: Tensor, context: Context) -> bool:
        """May the robot execute this plan, (horizon, dim)? A geometric check on the known map."""
        ...

    def path(self, plan: Tensor) -> FloatArray:
        """A plan's positions in world units, (horizon, 2) or (horizon, 3)."""
        ...
