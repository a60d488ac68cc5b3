"""One episode: the robot moves on while its planner plans.

At a planning instant the context is taken; planning takes ``L`` seconds, in which the robot goes on
with the plan, or the hold, that it had; then it is handed what came out. The next planning instant
is the next multiple of the platform's period that is not in the past. So a planner slower than the
period flies an old plan, and plans less often.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch import Tensor

from muninn.loop.escalation import Execute
from muninn.loop.supervisor import Command, Observation, Supervisor
from muninn_bench.platform import Episode, Platform, Snapshot
from muninn_bench.studies.closed_loop.runner import SimulatedWorker
from muninn_bench.studies.closed_loop.traces import Timed

SLICES = 10
"""Parts of a period in which the simulation is advanced, watched or not."""


@dataclass(frozen=True)
class FlownCall:
    """One planning call.

    Attributes:
        taken: simulated time of its context.
        handed: when its outcome reached the robot.
        clearance: metres to the nearest obstacle when the context was taken.
        mode, signal, estimate, action, source, factor, reason, late: as in
            :class:`muninn.loop.supervisor.CallReport`.
        evaluations: of all plans of the call.
        seed: of the noise of the plan that was executed.
    """

    taken: float
    handed: float
    clearance: float
    mode: str
    signal: float | None
    estimate: float | None
    action: str
    source: str | None
    factor: float | None
    reason: str | None
    late: bool
    evaluations: int
    seed: int | None

    @property
    def seconds(self) -> float:
        """Latency."""
        return self.handed - self.taken


@dataclass(frozen=True)
class Flight:
    """One episode.

    Attributes:
        method, seed: of the episode.
        outcome: ``success``, ``collision`` or ``timeout``.
        seconds: that it lasted; the time to the goal where it succeeded.
        smallest_clearance: metres.
        calls: in order.
        jobs: planning jobs with their latencies; with the seed they reproduce the flight.
        deviation: from full compute, of one call drawn at random, in the certificate's metric;
            0 if that call held, None if it was not measured.
    """

    method: str
    seed: int
    outcome: str
    seconds: float
    smallest_clearance: float
    calls: tuple[FlownCall, ...]
    jobs: tuple[Timed, ...]
    deviation: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Flight:
        """The flight that :meth:`to_json` described."""
        calls = tuple(FlownCall(**call) for call in data["calls"])
        jobs = tuple(Timed(**job) for job in data["jobs"])
        return cls(**{**data, "calls": calls, "jobs": jobs})


class Watcher(Protocol):
    """Looks on; has no influence."""

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        """An episode starts."""
        ...

    def moment(self, snapshot: Snapshot) -> None:
        """A slice of simulated time has passed."""
        ...

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """A call was answered; ``plan`` (horizon, dim) is followed from now on, None holds."""
        ...

    def end(self, flight: Flight) -> None:
        """The episode is over."""
        ...


class Loop:
    """One robot with its supervisor, ready to fly one episode.

    Args:
        platform: the robot.
        supervisor: answers its calls; its runner is ``worker``.
        worker: the simulated clock.
        method: name, for the flight.
        watcher: looks on, if there is one.

    Attributes:
        asked: context and command of every call, for whoever wants to look back.
    """

    def __init__(
        self,
        platform: Platform,
        supervisor: Supervisor,
        worker: SimulatedWorker,
        method: str = "",
        watcher: Watcher | None = None,
    ) -> None:
        self._platform = platform
        self._supervisor = supervisor
        self._worker = worker
        self._method = method
        self._watcher = watcher
        self.asked: list[tuple[Tensor, Command]] = []

    def fly(self, seed: int) -> Flight:
        """Run the episode of a seed to its outcome.

        Raises:
            Exception: whatever planning raised; in a study that is no hold but a defect.
        """
        platform, worker = self._platform, self._worker
        episode = platform.begin(seed)
        if self._watcher is not None:
            self._watcher.begin(episode, self._method, seed)
        episode.hold()
        holding = True
        calls: list[FlownCall] = []
        instant = 0
        while episode.outcome is None:
            taken = max(instant * platform.period, worker.now)
            clearance = episode.snapshot().clearance
            context = episode.context()
            worker.now = taken
            command = self._supervisor.supervise(Observation(context, taken), taken)
            if worker.error is not None:
                raise worker.error
            self.asked.append((context, command))
            self._advance(episode, worker.now)
            calls.append(_flown(command, taken, clearance))
            if episode.outcome is None:
                plan, action = command.plan, command.action
                if plan is None or not isinstance(action, Execute):
                    episode.hold()
                else:
                    # Planned from a standstill, it begins where the robot still stands.
                    first = episode.time if holding else min(taken, episode.time)
                    episode.follow(plan, first, action.factor)
                holding = plan is None
                if self._watcher is not None:
                    self._watcher.call(calls[-1], plan)
            instant = max(instant + 1, math.ceil(worker.now / platform.period - 1e-9))
            self._advance(episode, instant * platform.period)
        flight = Flight(
            self._method,
            seed,
            episode.outcome,
            episode.time,
            episode.smallest_clearance,
            tuple(calls),
            tuple(worker.jobs),
        )
        if self._watcher is not None:
            self._watcher.end(flight)
        return flight

    def _advance(self, episode: Episode, until: float) -> None:
        """Simulate until a time, in slices that do not depend on who is watching."""
        width = self._platform.period / SLICES
        while episode.outcome is None and episode.time < until - 1e-9:
            after = (math.floor(episode.time / width + 1e-6) + 1) * width
            before = episode.time
            episode.advance(min(after, until) - before)
            if episode.time == before:  # less than one step of the simulation
                break
            if self._watcher is not None:
                self._watcher.moment(episode.snapshot())


def _flown(command: Command, taken: float, clearance: float) -> FlownCall:
    report = command.report
    return FlownCall(
        taken,
        report.finished,
        clearance,
        report.mode,
        report.signal,
        report.estimate,
        report.action,
        report.source,
        report.factor,
        report.reason,
        report.late,
        report.evaluations,
        command.seed,
    )
