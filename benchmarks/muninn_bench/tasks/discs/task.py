"""The task: plan a way around the disc, once, and go it."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric
from muninn.certify.paired import call_seed
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher, load_teacher
from muninn_bench.networks.trainer import Training
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.planners.diffuser import diffuser_planner
from muninn_bench.task import Result, Stream
from muninn_bench.tasks.discs.data import HORIZON, RECORDING
from muninn_bench.tasks.discs.world import RADIUS, SECONDS, clearance, draw_problem, succeeds
from muninn_bench.tasks.recorded import RecordedTask

NETWORK = UnetConfig(
    channels=2, widths=(32, 64, 128), blocks=1, middle_blocks=1, time_width=64, predicts="epsilon"
)


class DiscEpisode:
    """One way; see :class:`muninn_bench.task.Episode`."""

    def __init__(self, teacher: Teacher, seed: int) -> None:
        self._teacher = teacher
        self._problem = draw_problem(np.random.default_rng(seed))
        self._path: FloatArray | None = None
        self.done, self.time = False, 0.0

    def context(self) -> Tensor:
        """Start and goal in the planner's units, (1, 2, 2)."""
        ends = torch.tensor(np.stack(self._problem), dtype=torch.float32)
        return self._teacher.normalise(ends)[None]

    def follow(self, plan: Tensor) -> None:
        """Go a plan (horizon, 2) to its end."""
        self._path = self._teacher.unnormalise(plan.float()).double().numpy()
        self.done, self.time = True, SECONDS

    def result(self) -> Result:
        """Success: at the goal, without touching the disc."""
        assert self._path is not None
        room = clearance(self._path)
        return Result(succeeds(self._path, self._problem.goal), figures={"clearance_m": room})


class Discs(RecordedTask):
    """See :class:`muninn_bench.task.Task`."""

    name = "discs"
    extra = ""
    variants = ("diffuser",)
    tolerance = 0.01
    unit = "m, at the worst frame"
    replans = False
    recording, horizon, whole_share = RECORDING, HORIZON, 1.0
    networks = {"diffuser": NETWORK}  # noqa: RUF012

    @cached_property
    def _teacher(self) -> Teacher:
        return load_teacher(model_file("discs/teacher.safetensors"))

    def planner(self, variant: str) -> Planner:
        """A small U-Net for the noise, and diffusers' DDIM with 100 steps and clip_sample."""
        return diffuser_planner(self._teacher, keep_epsilon=True)

    def metric(self, variant: str) -> Metric:
        """Largest distance between two plans at the same frame, metres."""
        largest_distance_m = partial(_largest_distance_m, self._teacher)
        # What a promise calls it.
        largest_distance_m.__qualname__ = "largest_distance_m"  # type: ignore[attr-defined]
        largest_distance_m.unit = "m"  # type: ignore[attr-defined]
        return largest_distance_m

    def good(self, plans: Tensor, contexts: Tensor) -> Tensor:
        """Whether plans reach their goals without touching the disc, (batch,)."""
        ends = self._teacher.unnormalise(contexts)[:, 1].double().numpy()
        found = [
            succeeds(path, goal)
            for path, goal in zip(self.positions("diffuser", plans), ends, strict=True)
        ]
        return torch.tensor(found)

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> DiscEpisode:
        """A start and a goal."""
        return DiscEpisode(self._teacher, call_seed(seed, stream, number))

    def positions(self, variant: str, plans: Tensor) -> FloatArray:
        """Metres, (plans, horizon, 2)."""
        world: FloatArray = self._teacher.unnormalise(plans).double().numpy()
        return world

    def draw(self, axis: Any, variant: str, context: Tensor) -> None:
        """The disc, start and goal."""
        angle = np.linspace(0.0, 2.0 * np.pi, 90)
        axis.fill(RADIUS * np.cos(angle), RADIUS * np.sin(angle), color="#d5dbe1")
        start, goal = self._teacher.unnormalise(context[0]).numpy()
        axis.plot(*start, "o", color="#1c2733", markersize=4)
        axis.plot(*goal, "*", color="#c0392b", markersize=9)
        axis.set_aspect("equal")

    def training(self, variant: str, out: Path) -> Training:
        """A number of steps, so that the training repeats; six minutes on one free core."""
        return Training(out, minutes=60.0, steps=4000, batch=128, learning_rate=1e-3, warmup=200,
                        averaging=0.998, report=250, device="cpu", fast=False)  # fmt: skip


def _largest_distance_m(teacher: Teacher, full: Tensor, fast: Tensor) -> Tensor:
    apart = teacher.unnormalise(full) - teacher.unnormalise(fast)
    found: Tensor = torch.linalg.vector_norm(apart, dim=-1).amax(dim=-1)
    return found


TASK = Discs()
