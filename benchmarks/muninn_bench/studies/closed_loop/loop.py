"""One episode: the robot moves on while its planner plans.

At a planning instant the context is taken. Planning takes ``L`` seconds, in which the robot goes on
with the plan, or the hold, that it had; then it is handed the result. The next planning instant
is the next multiple of the platform's period that is not in the past. So a planner slower than the
period flies an old plan, and plans less often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from muninn.loop.escalation import Execute
from muninn.loop.request import Reply, Request
from muninn.loop.supervisor import CallReport, Command, Observation, Supervisor
from muninn.model.schedule import FloatArray
from muninn_bench.platform import Episode, Platform, Snapshot
from muninn_bench.studies.closed_loop.traces import Latency, Timed

SLICES = 10
"""Parts of a period in which the simulation is advanced, watched or not."""

Plan = Callable[[str, Request], Reply]
"""``plan(program, job)``: where plans are computed, alone or in a batch with other robots'."""


class SimulatedWorker:
    """A :class:`muninn.loop.worker.Runner` on simulated time that behaves as a worker process does.

    It waits until the deadline and no longer. A plan that is late is thrown away, and the next job
    waits until the worker has finished it.

    The program ``cheap`` stands for the sources ``cached`` and ``resampled``.
    """

    def __init__(self, plan: Plan, latency: Latency, cheap: str = "cached") -> None:
        self._plan, self._latency, self._cheap = plan, latency, cheap
        self._free = -math.inf
        self.now = 0.0  # simulated seconds; the loop sets it when a call begins
        self.jobs: list[Timed] = []  # with the latencies they were charged
        # What planning raised. A supervisor turns it into a hold; a study must not.
        self.error: Exception | None = None

    def clock(self) -> float:
        """Simulated seconds."""
        return self.now

    def ask(self, job: Request, until: float) -> Reply | str:
        """The plans of a job, if they come in time."""
        begins = max(self.now, self._free)
        if begins >= until:
            self.now = until
            return "no plan by the deadline: the planner is at an earlier job"
        program = "full" if job.source == "full" else self._cheap
        began = time.perf_counter()
        try:
            plans = self._plan(program, job)
            took = time.perf_counter() - began
            evaluations = int(plans.record.evaluations.sum())
            seconds = self._latency(Timed(program, len(job.seeds), evaluations, took))
        except Exception as error:
            self.error = error
            raise
        self.jobs.append(Timed(program, len(job.seeds), evaluations, seconds))
        self._free = begins + seconds
        self.now = min(self._free, until)
        return plans if self._free <= until else "no plan by the deadline"


@dataclass
class FlownCall(CallReport):
    """One planning call, on the simulated clock."""

    clearance: float = math.nan  # metres to the nearest obstacle when the context was taken
    seed: int | None = None  # of the noise of the plan that was executed

    @property
    def seconds(self) -> float:
        """Latency."""
        return self.finished - self.began


@dataclass(frozen=True)
class Flight:
    """One episode; its seed and the latencies of its jobs reproduce it.

    The deviation is that of one call, drawn at random, from full compute, in the certificate's
    metric: 0 if that call held, None if it was not measured.
    """

    method: str
    seed: int
    outcome: str  # success, collision or timeout
    seconds: float  # that it lasted; the time to the goal where it succeeded
    smallest_clearance: float  # metres
    calls: tuple[FlownCall, ...]
    jobs: tuple[Timed, ...]
    deviation: float | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Flight:
        """The flight that ``asdict`` described."""
        calls = tuple(
            FlownCall(**{**call, "asked": tuple(call["asked"])}) for call in data["calls"]
        )
        jobs = tuple(Timed(**job) for job in data["jobs"])
        return cls(**{**data, "calls": calls, "jobs": jobs})


@dataclass(frozen=True)
class Seen:
    """A moment: where the robot is, the latest call, and the plan it follows, None in a hold."""

    snapshot: Snapshot
    call: FlownCall | None
    path: FloatArray | None


class Recorder:
    """Looks on and keeps one episode; has no influence.

    ``seen`` and ``calls`` are moments, and calls answered before the episode ended, in order;
    ``world`` are lines of walls, shores and obstacles, each (points, 2 or 3), world units.
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.flight: Flight | None = None

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        """An episode starts: forget the one before."""
        self.calls: list[FlownCall] = []
        self._path: FloatArray | None = None
        self.world = self.platform.outlines()
        self.goal = np.asarray(episode.goal)
        self.seen = [Seen(episode.snapshot(), None, None)]

    def moment(self, snapshot: Snapshot) -> None:
        """A slice of simulated time has passed."""
        self.seen.append(Seen(snapshot, self.calls[-1] if self.calls else None, self._path))

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """A call was answered; ``plan`` (horizon, dim) is followed from now on, None holds."""
        self.calls.append(call)
        self._path = None if plan is None else self.platform.path(plan)

    def end(self, flight: Flight) -> None:
        """The episode is over."""
        self.flight = flight


def fly(
    platform: Platform,
    supervisor: Supervisor,
    worker: SimulatedWorker,
    seed: int,
    method: str = "",
    watcher: Recorder | None = None,
) -> tuple[Flight, list[tuple[Tensor, Command]]]:
    """Run the episode of a seed to its outcome; returns also context and command of every call.

    The supervisor's runner is ``worker``, the simulated clock; ``method`` names the flight.

    Raises:
        Exception: whatever planning raised; in a study that is no hold but a defect.
    """
    episode = platform.begin(seed)
    if watcher is not None:
        watcher.begin(episode, method, seed)
    episode.hold()
    calls: list[FlownCall] = []
    asked: list[tuple[Tensor, Command]] = []
    holding, instant = True, 0
    while episode.outcome is None:
        worker.now = taken = max(instant * platform.period, worker.now)
        clearance, context = episode.snapshot().clearance, episode.context()
        command = supervisor.supervise(Observation(context, taken), taken)
        if worker.error is not None:
            raise worker.error
        asked.append((context, command))
        _advance(episode, worker.now, platform.period, watcher)
        plan, action = command.plan, command.action
        said = command.report.to_json()
        calls.append(FlownCall(**said, clearance=clearance, seed=command.seed))
        if episode.outcome is None:
            if plan is None or not isinstance(action, Execute):
                episode.hold()
            else:
                # Planned from a standstill, it begins where the robot still stands.
                first = episode.time if holding else min(taken, episode.time)
                episode.follow(plan, first, action.factor)
            holding = plan is None
            if watcher is not None:
                watcher.call(calls[-1], plan)
        instant = max(instant + 1, math.ceil(worker.now / platform.period - 1e-9))
        _advance(episode, instant * platform.period, platform.period, watcher)
    ended = (episode.outcome, episode.time, episode.smallest_clearance)
    flight = Flight(method, seed, *ended, tuple(calls), tuple(worker.jobs))
    if watcher is not None:
        watcher.end(flight)
    return flight, asked


def _advance(episode: Episode, until: float, period: float, watcher: Recorder | None) -> None:
    """Simulate until a time, in slices that do not depend on who is watching."""
    width = period / SLICES
    while episode.outcome is None and episode.time < until - 1e-9:
        before = episode.time
        after = (math.floor(before / width + 1e-6) + 1) * width
        episode.advance(min(after, until) - before)
        if episode.time == before:  # less than one step of the simulation
            break
        if watcher is not None:
            watcher.moment(episode.snapshot())
