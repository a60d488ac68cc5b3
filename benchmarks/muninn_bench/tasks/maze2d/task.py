"""Drive a ball through the large maze of D4RL along one plan."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn_bench.networks.teacher import Teacher
from muninn_bench.networks.trainer import Training
from muninn_bench.networks.transformer import TransformerConfig
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.report.style import INK
from muninn_bench.task import Result, Stream
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.data import HORIZON, RECORDING
from muninn_bench.tasks.maze2d.flight import TIME_LIMIT, MazePlatform
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS, EXTENT, WALLS, MazeProblem, draw_problem
from muninn_bench.tasks.maze2d.planner import bundled_teacher, maze_contexts, maze_planner
from muninn_bench.tasks.maze2d.rollout import HONEST, reach
from muninn_bench.tasks.recorded import RecordedTask

FOLDERS = {"diffuser": "maze2d", "transformer": "maze2d-transformer"}
"""Variants, and where their teachers lie under ``models``."""


@cache
def _teacher(variant: str) -> Teacher:
    return bundled_teacher(FOLDERS[variant])


class MazeDrive:
    """One problem: it is planned once, and the plan is tracked to the end."""

    def __init__(self, teacher: Teacher, problem: MazeProblem, number: int) -> None:
        self._teacher, self._problem, self._number = teacher, problem, number
        self.done, self.time = False, 0.0
        self._success = self._honest = False

    def context(self) -> Tensor:
        """Start and goal, (1, 2, 4)."""
        return maze_contexts(self._teacher, [self._problem])

    def follow(self, plan: Tensor) -> None:
        """Track the plan in gymnasium's environment until it succeeds or truncates the episode."""
        frames = self._teacher.unnormalise(plan).double().cpu().numpy()
        seconds, closest = reach(self._problem, frames, seed=self._number)
        self.done, self._success = True, seconds is not None
        free = bool(plan_is_free(frames[:, :2], BALL_RADIUS))
        self._honest = free and self._success and closest <= HONEST
        self.time = TIME_LIMIT if seconds is None else seconds

    def result(self) -> Result:
        """The environment's own success signal, and the seconds it took; the score is 1 where the
        plan touches no wall, too, and the ball comes within 0.1 m of the goal."""
        return Result(self._success, float(self._honest), {"time_s": self.time})


class Maze2D(RecordedTask):
    """See :class:`muninn_bench.task.Task`."""

    name = "maze2d"
    extra = ""
    variants = tuple(FOLDERS)
    tolerance = 0.002
    unit = "root mean square per step, in the coordinates of the model"
    replans = False
    recording = RECORDING
    networks = {"diffuser": UnetConfig(), "transformer": TransformerConfig()}  # noqa: RUF012
    horizon = HORIZON

    def planner(self, variant: str) -> Planner:
        """Full compute."""
        return maze_planner(_teacher(variant))

    def metric(self, variant: str) -> str:
        """The library's default, in the coordinates of the model."""
        return "rms_step"

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> MazeDrive:
        """Problem ``number`` of :func:`muninn_bench.tasks.maze2d.maze.sample_problems`."""
        generator = np.random.default_rng([call_seed(seed, stream) % 2**31, number])
        return MazeDrive(_teacher(variant), draw_problem(generator), number)

    def platform(self, variant: str) -> MazePlatform:
        """The ball on a clock, pushed by gusts and replanned; its tolerance is in metres."""
        return MazePlatform(bundled_teacher(FOLDERS[variant]), name=FOLDERS[variant])

    def training(self, variant: str, out: Path) -> Training:
        """As the teachers' cards say."""
        if variant == "diffuser":
            return Training(out, minutes=14.0)
        return Training(out, minutes=7.5, batch=1024, learning_rate=1e-3)

    def positions(self, variant: str, plans: Tensor) -> FloatArray:
        """World positions of plans, (plans, horizon, 2), metres."""
        return np.asarray(_teacher(variant).unnormalise(plans[..., :2]).double().cpu().numpy())

    def draw(self, axis: Any, variant: str, context: Tensor) -> None:
        """Walls, start and goal on a matplotlib axis."""
        axis.imshow(WALLS, extent=EXTENT, cmap="Greys", vmin=0, vmax=3, interpolation="nearest")
        start, goal = _teacher(variant).unnormalise(context)[0, :, :2].cpu().tolist()
        axis.plot(*start, "o", color=INK, markersize=4)
        axis.plot(*goal, "*", color="#c0392b", markersize=9)


TASK = Maze2D()
