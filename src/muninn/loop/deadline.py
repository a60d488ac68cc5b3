"""Planning against a deadline: the best certified answer that fits into the time left.

    plan = DeadlinePlanner(programs, times)            # times = measure_times(programs, contexts)
    answer = plan(context, deadline=time.monotonic() + 0.1, seed=7)

A call takes the most conservative member, from full compute to the certified one, whose measured
worst time fits into what is left. If not even the certified one fits, or the plan is late, failed
or flawed, the answer holds no plan and says why: never a plan of an earlier call.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from muninn.context import Context
from muninn.loop.programs import CertifiedPrograms, Job, Plans
from muninn.loop.times import Clock, Times
from muninn.record import Record


class LatencyLog:
    """Latencies, deadline misses and holds of the latest calls."""

    def __init__(self, keep: int = 100_000) -> None:
        self._seconds: deque[float] = deque(maxlen=keep)
        self.calls = 0
        self.misses = 0
        self.holds: Counter[str] = Counter()

    def add(self, seconds: float, *, late: bool, hold: str | None) -> None:
        """One call: how long it took, whether its plan came too late, why it held."""
        self.calls += 1
        self.misses += late
        self._seconds.append(seconds)
        if hold is not None:
            self.holds[hold] += 1

    def summary(self) -> dict[str, Any]:
        """JSON-ready figures."""
        seconds = np.array(self._seconds) if self._seconds else np.full(1, np.nan)
        p50, p99 = np.quantile(seconds, (0.5, 0.99)).tolist()
        return {
            "calls": self.calls,
            "latency_p50_s": p50,
            "latency_p99_s": p99,
            "latency_worst_s": float(seconds.max()),
            "deadline_misses": self.misses,
            "holds": sum(self.holds.values()),
        }


@dataclass(frozen=True)
class Answer:
    """What a call with a deadline came to.

    Attributes:
        plan: (horizon, dim), screened; None is a hold.
        record: of the call, if one was made.
        member: of the family that ran; 0 is full compute.
        reason: why there is no plan.
        finished: when, on the planner's clock.
    """

    plan: Tensor | None
    record: Record | None
    member: int | None
    reason: str | None
    finished: float


class DeadlinePlanner:
    """An anytime call: the most conservative certified member that fits into the time left.

    It runs in this process and cannot interrupt a planner that hangs; for that let
    :class:`muninn.loop.supervisor.Supervisor` ask a :class:`muninn.loop.worker.WorkerProcess`.

    Args:
        programs: certified program, screen and all.
        times: measured here, of the members that may be used; others are never run.
        clock: monotonic, that of the deadlines.
    """

    def __init__(
        self, programs: CertifiedPrograms, times: Times, clock: Clock = time.monotonic
    ) -> None:
        self.programs = programs
        self.times = times
        self.log = LatencyLog()
        self._clock = clock

    def choose(self, seconds: float) -> int | None:
        """The most conservative member that fits into ``seconds``, or None."""
        fitting = (k for k in self.programs.members() if self.times.need(k) <= seconds)
        return next(fitting, None)

    def __call__(self, context: Context, *, deadline: float, seed: int) -> Answer:
        """Plan for a context of one row. Never raises for what a planner does."""
        began = self._clock()
        member = self.choose(deadline - began)
        plans: Plans | None = None
        reason: str | None = None
        if member is None:
            reason = f"no measured member fits into {max(deadline - began, 0.0):.3g} s"
        else:
            try:
                plans = self.programs.run(Job(member, context, (seed,)))
                reason = plans.flaws[0]
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        finished = self._clock()
        late = member is not None and finished > deadline
        if finished < began:
            reason = f"the clock went back by {began - finished:.3g} s"
        elif late:
            reason = f"the plan came {finished - deadline:.3g} s after the deadline"
        self.log.add(finished - began, late=late, hold=reason)
        plan = None if plans is None or reason is not None else plans.trajectories[0]
        return Answer(plan, None if plans is None else plans.record, member, reason, finished)
