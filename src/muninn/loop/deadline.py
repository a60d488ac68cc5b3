"""Planning against a deadline: measured worst times, and the best certified answer that fits.

times = measure_times(programs, contexts, sources=programs.members())    # on the robot, once
times.save("times.json")
plan = DeadlinePlanner(programs, times)
answer = plan(context, deadline=time.monotonic() + 0.1, seed=7)
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context, batch_size, select
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.loop.escalation import Needs, PlanSource
from muninn.loop.request import CertifiedPrograms, Reply, Request, Responder
from muninn.loop.worker import Clock, InProcess
from muninn.record import Record


def machine() -> dict[str, str]:
    """What measured times hold for: another machine, or another setting of it, has others."""
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class Timing:
    """Sorted seconds of one source; most evaluations that a plan was seen to take, and may take."""

    seconds: tuple[float, ...]
    evaluations: int
    most_evaluations: int

    @property
    def worst(self) -> float:
        """The slowest call. Were calls exchangeable, the next of n + 1 exceeds it 1 in n + 1."""
        return self.seconds[-1]

    def quantile(self, level: float) -> float:
        """Upper quantile by rank, ceil(level (n + 1)); infinite where there are too few calls.

        >>> Timing(tuple(range(1, 100)), 1, 1).quantile(0.99)
        99.0
        >>> Timing(tuple(range(1, 99)), 1, 1).quantile(0.99)
        inf
        """
        place = math.ceil(level * (len(self.seconds) + 1) - 1e-9)
        return math.inf if place > len(self.seconds) else float(self.seconds[place - 1])


@dataclass(frozen=True)
class Times:
    """The table of one machine."""

    machine: dict[str, str]
    timings: dict[str, Timing]  # by source of plans, or by a member's number
    candidates: int  # plans per call of ``resampled``
    margin: float = 1.2  # times the worst is set aside

    def need(self, source: PlanSource | int) -> float:
        """Seconds to set aside for a source; infinite if it was never measured."""
        timing = self.timings.get(str(source))
        return math.inf if timing is None else self.margin * timing.worst

    def needs(self) -> Needs:
        """What the escalation machine compares with the time left."""
        return Needs(self.need("cached"), self.need("resampled"), self.need("full"))

    def report(self) -> str:
        """The table for a person, in milliseconds."""
        lines = ["source      calls     p50     p99   worst  set aside  evaluations (at most)"]
        for name, timing in self.timings.items():
            p50, p99 = 1e3 * timing.quantile(0.5), 1e3 * timing.quantile(0.99)
            worst, calls = 1e3 * timing.worst, len(timing.seconds)
            lines.append(
                f"{name:<10}{calls:7d}{p50:8.1f}{p99:8.1f}{worst:8.1f}{self.margin * worst:11.1f}"
                f"{timing.evaluations:13d} ({timing.most_evaluations})"
            )
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Times:
        """Read a table; raises InputError if it is damaged or another machine's, and says why."""
        try:
            data: dict[str, Any] = json.loads(Path(path).read_text())
            timings = {
                name: Timing(**{**timing, "seconds": tuple(timing["seconds"])})
                for name, timing in data.pop("timings").items()
            }
            table = cls(timings=timings, **data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a table of times ({error}); measure again with measure_times"
            ) from error
        pairs = [(key, table.machine.get(key), value) for key, value in machine().items()]
        other = [f"{key}: {there}, here {here}" for key, there, here in pairs if there != here]
        if other:
            raise InputError(
                f"{path}: measured on another machine or setting ({'; '.join(other)}); run "
                "measure_times here"
            )
        return table


def measure_times(
    programs: Responder,
    contexts: Context,
    *,
    sources: Iterable[PlanSource | int] = ("cached", "resampled", "full"),
    candidates: int = 4,
    calls: int = 200,
    warm_up: int = 5,
    margin: float = 1.2,
    clock: Clock = time.perf_counter,
) -> Times:
    """Measure worst-case times; run it on the robot, with everything running that will run.

    The sources take turns, so that a slow minute of the machine falls on all of them.

    Args:
        programs: what will be deployed, screen included.
        contexts: like those to come, batched; taken in turn.
        sources: what to measure; for :class:`DeadlinePlanner` ``programs.members()``.
        candidates, margin: see :class:`Times`.
        calls: measured for each source; at least 99 for a p99.
        warm_up: calls before them that do not count (compilation, capture, caches).
    """
    if calls < 1 or candidates < 1 or not margin >= 1.0:
        raise InputError(
            f"calls and candidates are at least 1 and margin at least 1.0, got {calls}, "
            f"{candidates} and {margin}"
        )
    rows = batch_size(contexts) or 1
    seen: dict[PlanSource | int, list[tuple[float, int]]] = {source: [] for source in sources}
    for call in range(-warm_up, calls):
        context = select(contexts, slice(call % rows, call % rows + 1))
        for source, measured in seen.items():
            count = candidates if source == "resampled" else 1
            seeds = tuple(range(count * call + 1_000, count * (call + 1) + 1_000))
            began = clock()
            reply = programs.run(Request(source, context, seeds))
            took = clock() - began
            if call >= 0:
                measured.append((took, int(reply.record.evaluations.max())))
    timings = {}
    for source, measured in seen.items():
        seconds, evaluations = zip(*sorted(measured), strict=True)
        most = programs.most_evaluations(source)
        timings[str(source)] = Timing(seconds, max(evaluations), most)
    return Times(machine(), timings, candidates, margin)


class LatencyLog:
    """Latencies, deadline misses and holds of the latest calls."""

    def __init__(self, keep: int = 100_000) -> None:
        self._seconds: deque[float] = deque(maxlen=keep)
        self.calls = self.misses = 0
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
    """A screened plan, (horizon, dim), or the reason to hold."""

    plan: Tensor | None
    record: Record | None  # of the program that ran, if one did
    member: int | None  # that ran; 0 is full compute
    reason: str | None
    finished: float


@dataclass(eq=False)
class DeadlinePlanner:
    """Runs the most conservative certified member whose measured worst time fits.

    If none fits, or the plan is late, failed or flawed, the answer holds no plan and says why. The
    call runs in this process and cannot interrupt a planner that hangs; a supervisor with a
    :class:`muninn.loop.worker.WorkerProcess` can.

    ``times``, measured here, has the members that may be used; others are never run. ``clock`` is
    that of the deadlines.
    """

    programs: CertifiedPrograms
    times: Times
    clock: Clock = time.monotonic
    log: LatencyLog = field(default_factory=LatencyLog, init=False)

    def choose(self, seconds: float) -> int | None:
        """The most conservative member that fits into ``seconds``, or None."""
        return next((k for k in self.programs.members() if self.times.need(k) <= seconds), None)

    def __call__(self, context: Context, *, deadline: float, seed: int) -> Answer:
        """Plan for a context of one row. Never raises for what a planner does."""
        began = self.clock()
        member = self.choose(deadline - began)
        reply: Reply | str = f"no measured member fits into {max(deadline - began, 0.0):.3g} s"
        if member is not None:
            request = Request(member, context, (seed,))
            reply = InProcess(self.programs, self.clock).ask(request, deadline)
        finished = self.clock()
        late = member is not None and finished > deadline
        reason = reply if isinstance(reply, str) else reply.flaws[0]
        if finished < began:
            reason = f"the clock went back by {began - finished:.3g} s"
        elif late:
            reason = f"the plan came {finished - deadline:.3g} s after the deadline"
        self.log.add(finished - began, late=late, hold=reason)
        if isinstance(reply, str):
            return Answer(None, None, member, reason, finished)
        plan = reply.trajectories[0] if reason is None else None
        return Answer(plan, reply.record, member, reason, finished)
