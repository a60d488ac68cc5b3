"""A task without a world: a closed-form planner, and episodes that only ask and count."""

from __future__ import annotations

import torch
from torch import Tensor

from analytic import mixture_planner
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn_bench.task import Result, Stream

STEPS, TOLERANCE = 24, 0.05


class ToyEpisode:
    """Asks for ``calls`` plans and succeeds twice in three times."""

    def __init__(self, number: int, calls: int) -> None:
        self.time, self._number, self._left = 0.0, number, calls

    @property
    def done(self) -> bool:
        return self._left == 0

    def context(self) -> Tensor:
        return torch.full((1, 1), float(self._number + 100 * self._left))

    def follow(self, plan: Tensor) -> None:
        assert plan.shape == (8, 2)
        self._left -= 1

    def result(self) -> Result:
        return Result(self._number % 3 != 0, score=float(self._number))


class Toy:
    """A closed-form mixture; its denoiser ignores the context."""

    name, extra, variants, tolerance, unit = "toy", "", ("only",), TOLERANCE, "none"

    def __init__(self, calls: int = 1) -> None:
        self.replans, self._calls = calls > 1, calls

    def planner(self, variant: str) -> Planner:
        return mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), (8, 2))

    def metric(self, variant: str) -> str:
        return "rms_step"

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> ToyEpisode:
        return ToyEpisode(number + 1000 * stream, self._calls)
