"""Latency traces: how long every planning job took, kept, drawn from, and repeated.

A trace is a file of JSON lines: a header that names the machine, then one line per planning job.
What a job took is a function of its program, its number of plans and its evaluations; nothing else
of an episode depends on the speed of the machine. So an episode is reproduced exactly from its seed
and its latencies.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.loop.deadline import machine

NEAREST = 20
"""Recorded jobs, the nearest in evaluations, among which a latency is drawn."""


@dataclass(frozen=True)
class Timed:
    """One planning job.

    Attributes:
        program: ``full``, ``cached`` or ``fewsteps``.
        plans: rows that were planned together.
        evaluations: denoiser evaluations of all rows.
        seconds: that it took.
    """

    program: str
    plans: int
    evaluations: int
    seconds: float


class Latency(Protocol):
    """Says how long a job took."""

    def __call__(self, job: Timed) -> float:
        """Seconds to charge; ``job.seconds`` is what the wall clock says."""
        ...


def measured(job: Timed) -> float:
    """The wall clock of this very job."""
    return job.seconds


def instant(job: Timed) -> float:
    """Planning takes no time: what a method does when given enough of it."""
    return 0.0


class Replayed:
    """Repeats the latencies of a recorded episode, job by job.

    Raises:
        InputError: another job is asked for than was recorded: another planner, seed or method.
    """

    def __init__(self, jobs: Iterable[Timed]) -> None:
        self._jobs = iter(jobs)
        self._count = 0

    def __call__(self, job: Timed) -> float:
        self._count += 1
        known = next(self._jobs, None)
        asked = (job.program, job.plans, job.evaluations)
        if known is None or asked != (known.program, known.plans, known.evaluations):
            raise InputError(
                f"job {self._count} of the episode is {asked}, the trace has {known}; replay with "
                "the planner, certificate, seed and method that were recorded"
            )
        return known.seconds


class Drawn:
    """Draws latencies from a trace, reproducibly from a seed.

    A job takes what one of the ``NEAREST`` recorded jobs took that ran the same program on the same
    number of plans with the most similar number of evaluations.
    """

    def __init__(self, trace: Trace, seed: int) -> None:
        self._trace = trace
        self._generator = np.random.default_rng(seed)

    def __call__(self, job: Timed) -> float:
        jobs = self._trace.of(job.program, job.plans)
        apart = np.abs(np.array([known.evaluations for known in jobs]) - job.evaluations)
        nearest = np.argsort(apart, kind="stable")[:NEAREST]
        # Equally near ones all count: else the first recorded would stand for all of them.
        candidates = np.flatnonzero(apart <= apart[nearest[-1]])
        return jobs[int(self._generator.choice(candidates))].seconds


@dataclass(frozen=True)
class Trace:
    """Planning jobs of one machine.

    Attributes:
        machine: where; see :func:`muninn.loop.deadline.machine`.
        jobs: in order.
    """

    machine: dict[str, str] = field(default_factory=machine)
    jobs: Sequence[Timed] = ()

    def __post_init__(self) -> None:
        groups: dict[tuple[str, int], list[Timed]] = defaultdict(list)
        for job in self.jobs:
            groups[job.program, job.plans].append(job)
        object.__setattr__(self, "_groups", dict(groups))

    def of(self, program: str, plans: int) -> list[Timed]:
        """The jobs of a program with so many plans.

        Raises:
            InputError: there is none.
        """
        groups: dict[tuple[str, int], list[Timed]] = self._groups  # type: ignore[attr-defined]
        if (program, plans) not in groups:
            have = ", ".join(f"{name} x {count}" for name, count in groups) or "nothing"
            raise InputError(
                f"the latency trace has no job of {program} x {plans}, only {have}; measure again"
            )
        return groups[program, plans]

    def quantile(self, level: float, program: str, plans: int) -> float:
        """Seconds within which a share ``level`` of such jobs were done; infinite without any."""
        try:
            return float(np.quantile([job.seconds for job in self.of(program, plans)], level))
        except InputError:
            return math.inf

    def save(self, path: Path) -> None:
        """Write the file."""
        lines = [json.dumps({"machine": self.machine})]
        lines += [json.dumps(asdict(job)) for job in self.jobs]
        write_whole(path, "\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a file.

        Raises:
            InputError: it is missing or is none.
        """
        try:
            header, *lines = path.read_text().splitlines()
            jobs = [Timed(**json.loads(line)) for line in lines]
            fields: dict[str, Any] = json.loads(header)
            return cls(fields["machine"], jobs)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a latency trace ({error}); delete it to measure again"
            ) from error
