"""Measured worst-case times of this machine: what may be begun before a deadline.

times = measure_times(programs, contexts)     # on the robot, once
times.save("times.json")
print(times.report())
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from muninn.context import Context, batch_size, select
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.loop.escalation import Needs, Source
from muninn.loop.programs import Job, Programs

Clock = Callable[[], float]


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
    """Measured seconds of one source of plans.

    Attributes:
        seconds: of each call, sorted.
        per_evaluation: worst seconds of a call over the evaluations of a plan it made.
        evaluations: most that were seen in a plan.
        most_evaluations: most that a plan may take.
    """

    seconds: tuple[float, ...]
    per_evaluation: float
    evaluations: int
    most_evaluations: int

    @property
    def worst(self) -> float:
        """The slowest call. Were calls exchangeable, the next of n + 1 exceeds it 1 in n + 1."""
        return self.seconds[-1]

    @property
    def possible(self) -> float:
        """Seconds of a plan that takes all the evaluations it may, each as slow as the slowest."""
        return max(self.worst, self.per_evaluation * self.most_evaluations)

    def quantile(self, level: float) -> float:
        """Upper quantile by rank, ceil(level (n + 1)); infinite where there are too few calls.

        >>> Timing(tuple(range(1, 100)), 0.0, 1, 1).quantile(0.99)
        99.0
        >>> Timing(tuple(range(1, 99)), 0.0, 1, 1).quantile(0.99)
        inf
        """
        place = math.ceil(level * (len(self.seconds) + 1) - 1e-9)
        return math.inf if place > len(self.seconds) else float(self.seconds[place - 1])


@dataclass(frozen=True)
class Times:
    """The table of one machine.

    Attributes:
        machine: where it was measured; see :func:`machine`.
        timings: by source of plans (``cached``, ``resampled``, ``full``, or a member's number).
        candidates: plans per call of ``resampled``.
        margin: worst times are multiplied by it before they are compared with what is left.
    """

    machine: dict[str, str]
    timings: dict[str, Timing]
    candidates: int
    margin: float = 1.2

    def need(self, source: Source | int) -> float:
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
            shown = [timing.quantile(0.5), timing.quantile(0.99), timing.worst]
            cells = "".join(f"{1e3 * value:8.1f}" for value in shown)
            lines.append(
                f"{name:<10}{len(timing.seconds):7d}{cells}{1e3 * self.margin * timing.worst:11.1f}"
                f"{timing.evaluations:13d} ({timing.most_evaluations})"
            )
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Times:
        """Read a table; times of another machine are refused.

        Raises:
            InputError: the file cannot be read, or names what differs here.
        """
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
        here = machine()
        other = [f"{key}: {table.machine.get(key)}, here {here[key]}" for key in here
                 if table.machine.get(key) != here[key]]  # fmt: skip
        if other:
            raise InputError(
                f"{path}: measured on another machine or setting ({'; '.join(other)}); run "
                "measure_times here"
            )
        return table


def measure_times(
    programs: Programs,
    contexts: Context,
    *,
    sources: Iterable[Source | int] = ("cached", "resampled", "full"),
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
        candidates: plans per call of ``resampled``.
        calls: measured for each source; at least 99 for a p99.
        warm_up: calls before them that do not count (compilation, capture, caches).
        margin: see :class:`Times`.
        clock: seconds.
    """
    if calls < 1 or candidates < 1 or not margin >= 1.0:
        raise InputError(
            f"calls and candidates are at least 1 and margin at least 1.0, got {calls}, "
            f"{candidates} and {margin}"
        )
    rows = batch_size(contexts) or 1
    names = list(sources)
    seconds: dict[str, list[float]] = {str(name): [] for name in names}
    evaluations: dict[str, list[int]] = {str(name): [] for name in names}
    for call in range(-warm_up, calls):
        context = select(contexts, slice(call % rows, call % rows + 1))
        for name in names:
            count = candidates if name == "resampled" else 1
            job = Job(name, context, tuple(range(count * call + 1_000, count * (call + 1) + 1_000)))
            began = clock()
            plans = programs.run(job)
            took = clock() - began
            if call >= 0:
                seconds[str(name)].append(took)
                evaluations[str(name)].append(int(plans.record.evaluations.max()))
    timings = {
        str(name): Timing(
            tuple(sorted(seconds[str(name)])),
            max(map(_ratio, seconds[str(name)], evaluations[str(name)])),
            max(evaluations[str(name)]),
            programs.most_evaluations(name),
        )
        for name in names
    }
    return Times(machine(), timings, candidates, margin)


def _ratio(seconds: float, evaluations: int) -> float:
    return seconds / max(evaluations, 1)
