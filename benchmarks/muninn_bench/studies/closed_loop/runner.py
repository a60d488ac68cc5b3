"""A planner's process on the simulated clock: plans come when their latency has passed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from muninn.loop.request import Reply, Request
from muninn_bench.studies.closed_loop.traces import Latency, Timed

Plan = Callable[[str, Request], Reply]
"""``plan(program, job)``: where plans are computed, alone or in a batch with other robots'."""


class SimulatedWorker:
    """A :class:`muninn.loop.worker.Runner` on simulated time that behaves as a worker process does.

    It waits until the deadline and no longer. A plan that is late is thrown away, and the next job
    waits until the worker has finished it.

    Args:
        plan: computes plans.
        latency: how long that took.
        cheap: program that stands for the sources ``cached`` and ``resampled``.

    Attributes:
        now: simulated seconds; the loop sets it when a call begins.
        jobs: every job with the latency it was charged.
        error: what planning raised. A supervisor turns it into a hold; a study must not.
    """

    def __init__(self, plan: Plan, latency: Latency, cheap: str = "cached") -> None:
        self._plan = plan
        self._latency = latency
        self._cheap = cheap
        self._free = -math.inf
        self.now = 0.0
        self.jobs: list[Timed] = []
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
        if self._free > until:
            self.now = until
            return "no plan by the deadline"
        self.now = self._free
        return plans
