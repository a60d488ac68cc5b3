"""Latency traces: how long every planning job took, kept, drawn from, and repeated.

A trace is a file of JSON lines: a header that names the machine, then one line per planning job.
Only latencies tie an episode to the speed of a machine, so its seed and its latencies reproduce it
exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.loop.deadline import machine

NEAREST = 20
"""Recorded jobs, the nearest in evaluations, among which a latency is drawn."""


@dataclass(frozen=True)
class Timed:
    """One planning job: its program, rows planned together, evaluations of all rows, seconds."""

    program: str
    plans: int
    evaluations: int
    seconds: float


Latency = Callable[[Timed], float]
"""Seconds to charge for a job; ``job.seconds`` is what the wall clock says."""


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
        self._jobs = enumerate([*jobs, None], 1)

    def __call__(self, job: Timed) -> float:
        number, known = next(self._jobs)
        asked = (job.program, job.plans, job.evaluations)
        if known is None or asked != (known.program, known.plans, known.evaluations):
            raise InputError(
                f"job {number} of the episode is {asked}, the trace has {known}; replay with "
                "the planner, certificate, seed and method that were recorded"
            )
        return known.seconds


class Drawn:
    """Draws latencies from a trace, reproducibly from a seed.

    A job takes what one of the ``NEAREST`` recorded jobs took that ran the same program on the same
    number of plans with the most similar number of evaluations.
    """

    def __init__(self, trace: Trace, seed: int) -> None:
        self._trace, self._generator = trace, np.random.default_rng(seed)

    def __call__(self, job: Timed) -> float:
        jobs = self._trace.of(job.program, job.plans)
        apart = np.abs(np.array([known.evaluations for known in jobs]) - job.evaluations)
        nearest = np.argsort(apart, kind="stable")[:NEAREST]
        # Equally near ones all count: else the first recorded would stand for all of them.
        candidates = np.flatnonzero(apart <= apart[nearest[-1]])
        return jobs[int(self._generator.choice(candidates))].seconds


@dataclass(frozen=True)
class Trace:
    """Planning jobs, in order, of one machine (see :func:`muninn.loop.deadline.machine`)."""

    machine: dict[str, str] = field(default_factory=machine)
    jobs: Sequence[Timed] = ()

    def of(self, program: str, plans: int) -> list[Timed]:
        """The jobs of a program with so many plans.

        Raises:
            InputError: there is none.
        """
        found = [job for job in self.jobs if (job.program, job.plans) == (program, plans)]
        if not found:
            kinds = dict.fromkeys(f"{job.program} x {job.plans}" for job in self.jobs)
            raise InputError(
                f"the latency trace has no job of {program} x {plans}, only "
                f"{', '.join(kinds) or 'nothing'}; measure again"
            )
        return found

    def quantile(self, level: float, program: str, plans: int) -> float:
        """Seconds within which a share ``level`` of such jobs were done; infinite without any."""
        kind = (program, plans)
        times = [job.seconds for job in self.jobs if (job.program, job.plans) == kind]
        return float(np.quantile(times, level)) if times else math.inf

    def save(self, path: Path) -> None:
        """Write the file."""
        write_lines(path, {"machine": self.machine}, self.jobs)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a file.

        Raises:
            InputError: it is missing or is none.
        """
        try:
            header, *lines = map(json.loads, path.read_text().splitlines())
            return cls(header["machine"], [Timed(**line) for line in lines])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a latency trace ({error}); delete it to measure again"
            ) from error


def write_lines(path: Path, header: dict[str, Any], rows: Iterable[Any]) -> None:
    """Write a header and dataclasses as JSON lines."""
    values = [header, *map(asdict, rows)]
    write_whole(path, "".join(json.dumps(value) + "\n" for value in values))
