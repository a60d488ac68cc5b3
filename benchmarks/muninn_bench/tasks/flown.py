"""A robot on a simulated clock as a task: planning takes no time, and every plan is screened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Tensor

from muninn.certify.metrics import Metric
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn_bench.networks.teacher import NetworkConfig
from muninn_bench.networks.trainer import Training
from muninn_bench.platform import SCOUTED, STUDIED, Platform, position_metric
from muninn_bench.task import Result, Stream
from muninn_bench.tasks.recorded import RecordedTask, Recording

FIRST = {
    Stream.TRAIN: 4_000_000,
    Stream.TUNE: 3_000_000,
    Stream.CERTIFY: SCOUTED,
    Stream.TEST: STUDIED,
}
"""First seed of each stream, a million apart; certify and test are those of the closed loop."""

MOST = 1_000_000


class FlownEpisode:
    """An episode of a platform that plans at every period, in no time."""

    def __init__(self, platform: Platform, seed: int) -> None:
        self._platform, self._robot = platform, platform.begin(seed)
        self._calls, self.time = 0, 0.0  # simulated seconds
        self.done = False  # whether the robot has succeeded, collided or run out of time

    def context(self) -> Tensor:
        """What the robot senses now."""
        return self._robot.context().clone()

    def follow(self, plan: Tensor) -> None:
        """Follow a plan that passes the screen from now on, hold otherwise, for one period."""
        if self._platform.screen(plan, self._robot.context()):
            self._robot.follow(plan, self._robot.time)
        else:
            self._robot.hold()
        self._calls += 1
        self._robot.advance(self._calls * self._platform.period - self._robot.time)
        self.time, self.done = self._robot.time, self._robot.outcome is not None

    def result(self) -> Result:
        """Success, the seconds it took, and the smallest clearance in metres."""
        robot = self._robot
        figures = {"time_s": robot.time, "clearance_m": robot.smallest_clearance}
        return Result(robot.outcome == "success", figures=figures)


@dataclass(frozen=True)
class FlownTask(RecordedTask):
    """A platform as a task; see :class:`muninn_bench.task.Task`."""

    name: str  # the folder's
    tolerance: float  # metres, the platform's own
    build: Callable[[], Platform]  # a fresh one
    recording: Recording  # this and the next four: how its planner was trained
    networks: Mapping[str, NetworkConfig]
    horizon: int
    minutes: float
    batch: int
    extra: str = "fly"
    variants: tuple[str, ...] = ("diffuser",)
    unit: str = "m between two plans at their worst frame"
    replans: bool = True

    def platform(self, variant: str) -> Platform:
        """A fresh one: a study may let a GPU evaluate its network."""
        return self.build()

    def planner(self, variant: str) -> Planner:
        """Full compute."""
        return _kept(self.build).planner

    def metric(self, variant: str) -> Metric:
        """Largest distance between two plans' positions at a frame, metres."""
        return position_metric(_kept(self.build))

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> FlownEpisode:
        """Episode ``number`` of a stream.

        Raises:
            InputError: streams would overlap.
        """
        if not 0 <= number < MOST:
            raise InputError(f"a stream has episodes 0 to {MOST - 1}, got {number}")
        return FlownEpisode(_kept(self.build), 10 * MOST * seed + FIRST[stream] + number)

    def training(self, variant: str, out: Path) -> Training:
        """As the teacher's card says."""
        return Training(out, minutes=self.minutes, batch=self.batch)


@cache
def _kept(build: Callable[[], Platform]) -> Platform:
    """One platform for all episodes of a task."""
    return build()
