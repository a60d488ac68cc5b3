"""A point robot whose planner is a closed form, and programs that say when they were asked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import loop_cases
from muninn.certify.metrics import rms_step
from muninn.context import Context
from muninn.loop.request import Reply, Request
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.platform import Outcome, Snapshot
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms
from muninn_bench.studies.closed_loop.traces import Timed, Trace

PERIOD = 0.5
TIMEOUT = 3.0
METRIC = rms_step


@dataclass
class PointEpisode:
    """Relaxes towards the frame of its plan that is due, exactly; remembers what happened."""

    position: FloatArray
    goal: FloatArray
    time: float = 0.0
    outcome: Outcome | None = None
    smallest_clearance: float = math.inf
    events: list[tuple[Any, ...]] = field(default_factory=list)
    trail: list[tuple[float, float, float]] = field(default_factory=list)
    _plan: FloatArray | None = None
    _taken: float = 0.0
    _factor: float = 1.0

    def context(self) -> Tensor:
        self.events.append(("context", self.time))
        return torch.tensor(self.position[None], dtype=torch.float32)

    def follow(self, plan: Tensor, taken: float, factor: float = 1.0) -> None:
        assert taken <= self.time
        self._plan, self._taken, self._factor = plan.double().numpy(), taken, factor
        self.events.append(("follow", self.time, taken, factor, float(plan[0, 0])))

    def hold(self) -> None:
        self._plan = None
        self.events.append(("hold", self.time))

    def advance(self, seconds: float) -> None:
        if self._plan is not None:
            frame = min(int((self.time - self._taken) / 0.25), len(self._plan) - 1)
            away = self.position - self._plan[frame]
            self.position = self._plan[frame] + away * math.exp(-self._factor * seconds)
        self.time += seconds
        self.trail.append((self.time, *self.position.tolist()))
        here = self.snapshot()
        self.smallest_clearance = min(self.smallest_clearance, here.clearance)
        if here.clearance < 0.0:
            self.outcome = "collision"
        elif here.to_goal < 0.25:
            self.outcome = "success"
        elif self.time >= TIMEOUT - 1e-9:
            self.outcome = "timeout"

    def snapshot(self) -> Snapshot:
        reach = float(np.linalg.norm(self.position))
        to_goal = float(np.linalg.norm(self.position - self.goal))
        return Snapshot(self.time, self.position.copy(), 2.0 - reach, to_goal)


@dataclass
class PointPlatform:
    """Free space is a disc; the goal is where one of the planner's modes ends."""

    name: str = "point"
    planner: Planner = field(default_factory=loop_cases.planner)
    period: float = PERIOD
    candidates: int = 4
    tolerance: float = loop_cases.TOLERANCE
    reachable: bool = True
    begun: list[PointEpisode] = field(default_factory=list)

    def begin(self, seed: int) -> PointEpisode:
        generator = np.random.default_rng(seed)
        start = generator.normal(0.0, 0.5, 2)
        modes = self.planner.denoiser.means[:, -1]  # type: ignore[attr-defined]
        goal = start + modes[seed % len(modes)].numpy()
        episode = PointEpisode(start, goal if self.reachable else np.array([50.0, 0.0]))
        self.begun.append(episode)
        return episode

    def screen(self, plan: Tensor, context: Context) -> bool:
        return bool(plan.norm(dim=1).max() < 4.0)

    def path(self, plan: Tensor) -> FloatArray:
        path: FloatArray = plan.double().numpy()
        return path

    def outlines(self) -> list[FloatArray]:
        angle = np.linspace(0.0, 2.0 * math.pi, 33)
        return [2.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)]


def platform() -> PointPlatform:
    """A module's function, so that another process can build it."""
    return PointPlatform()


def programs(robot: PointPlatform | None = None) -> ClosedLoopPrograms:
    """Its certified planner."""
    robot = robot or PointPlatform()
    fewer = Alternative.untuned("fewsteps", robot.planner, 4)
    return ClosedLoopPrograms(robot, loop_cases.fast(), fewer)


def trace(full: float = 0.9, cached: float = 0.1, resampled: float = 0.2) -> Trace:
    """Latencies that vary a little around given ones."""
    vary = 1.0 + 0.1 * np.sin(np.arange(30))
    kinds = (("full", 1, full), ("fewsteps", 1, cached), ("cached", 1, cached))
    jobs = [
        Timed(program, plans, 3 + number % 3, float(seconds * factor))
        for program, plans, seconds in (*kinds, ("cached", 4, resampled))
        for number, factor in enumerate(vary)
    ]
    return Trace({"system": "nowhere"}, jobs)


@dataclass
class Counted:
    """Plans that carry their number in hundredths, from programs that do not compute."""

    rank: float = 0.5
    asked: list[tuple[str, Request]] = field(default_factory=list)

    def __call__(self, program: str, job: Request) -> Reply:
        rows = len(job.seeds)
        number = 0.01 * len(self.asked)
        self.asked.append((program, job))
        plans = torch.full((rows, *loop_cases.SHAPE), number, dtype=torch.float64)
        record = loop_cases.record([0.1] * rows, [self.rank] * rows)
        return Reply(plans, record, (None,) * rows)
