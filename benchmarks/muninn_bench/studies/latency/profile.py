"""Where the time of one call goes: by part of the program on the host, by kernel on a GPU.

Eager calls are host-bound, so their parts are timed by clocks at the seams of the runtime (the
network, sums, gaps, the sampler, conditioning, reads by the host). A replayed graph has none; its
kernels are traced and grouped by name, and what is outside the network is the difference to a
graph of the evaluations alone.
"""

from __future__ import annotations

import functools
import itertools
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from muninn.context import Context
from muninn.engines import rounds, runtime, tables
from muninn.engines.gap import Gaps, StepTable
from muninn.engines.rounds import RoundRuntime
from muninn.engines.run_state import RunState
from muninn.model.planner import Noise
from muninn.model.sampler import Sampler
from muninn.progress import Task
from muninn_bench.measure.machine import synchronise
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.turns import time_call
from muninn_bench.planners.diffuser import InpaintedDenoiser
from muninn_bench.studies.latency.results import Row
from muninn_bench.studies.latency.variants import InpaintedEnds, TimedVariant
from muninn_bench.studies.latency.ways import Way

Parts = dict[str, tuple[float, float]]
"""Milliseconds a call, and how often the part was entered or launched."""

Seams = Mapping[str, Sequence[tuple[Any, str]]]
"""Functions of each part, as owner and attribute; a part inside another counts for itself only."""

SEAMS: Seams = {
    "network": ((InpaintedDenoiser, "__call__"),),
    "weighted sums of a table": ((tables.TableRuntime, "_run"),),
    "gaps: forecasts and look-back": ((Gaps, "run"), (rounds, "vector_gap")),
    "error estimate, read, and plan": ((runtime.Runtime, "_plan_ahead"), (RoundRuntime, "_plan")),
    "sampler": ((Sampler, "step"), (Sampler, "convert"), (StepTable, "step")),
    "conditioning": ((InpaintedEnds, "__call__"),),
    "reads by the host": ((RunState, "read"), (RoundRuntime, "_outcome")),
}
HOST = ("full-eager", "static-eager", "gated-eager")
DEVICE = (
    "full-graph", "network-graph", "static-graph", "gated-graph", "full-compiled-graph", "full-last"
)  # fmt: skip

REPEATS = 5
TRACED = 2  # calls; one of full compute is some 20,000 kernels
REST, IDLE = "the rest", "no kernel running"
KERNELS = (
    (r"_gap", "gap kernel"),
    (r"nchwToNhwc|nhwcToNchw", "changes of layout around convolutions"),
    (r"triton", "fused by the compiler"),
    (r"memcpy|memset", "copies and fills"),
    (r"norm|welford|RowwiseMoments", "normalisation"),
    (r"flash|fmha|attention|softmax", "attention"),
    (r"conv|cudnn|nchw|nhwc|xmma|cutlass|gemm|gemv|sm\d\d_|splitK", "convolutions and products"),
    (r"reduce", "reductions"),
    (r"elementwise|CatArray|index|gather|scatter|fill|copy", "element-wise and indexing"),
)
"""Pattern in a kernel's name and its group, the first that fits."""


class Clock:
    """Wall-clock time by part, each moment counted for the innermost part only."""

    stands_in = True  # is no part of the network that it times

    def __init__(self) -> None:
        self._inside = [REST]
        self.start()

    def start(self) -> None:
        """Begin; time counts for the rest until a part is entered."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.entries = Counter[str]()
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count the time since then for the part that is entered."""
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    def timed(self, inner: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, its time counted for a part."""

        @functools.wraps(inner)
        def outer(*arguments: Any, **named: Any) -> Any:
            self.stop()
            self._inside.append(part)
            self.entries[part] += 1
            try:
                return inner(*arguments, **named)
            finally:
                self.stop()
                self._inside.pop()

        return outer

    @contextmanager
    def at(self, seams: Seams) -> Iterator[None]:
        """Time the seams until the block ends."""
        with ExitStack() as stack:
            for part, functions in seams.items():
                for owner, name in functions:
                    timed = self.timed(getattr(owner, name), part)
                    stack.enter_context(mock.patch.object(owner, name, timed))
            yield


def host_parts(make: Callable[[], Run], call: tuple[Context, Noise], device: torch.device) -> Parts:
    """Mean wall-clock time of each part of a call.

    On a GPU the host does not wait for kernels, except where it reads: a part's time is that of
    launching it. The run is made with the clocks on: to one made before, they would be another
    network.
    """
    clock = Clock()
    with clock.at(SEAMS):
        run = make()
        run(*call)
        synchronise(device)
        clock.start()
        for _ in range(REPEATS):
            run(*call)
            synchronise(device)
        clock.stop()
    return {
        part: (1e3 * seconds / REPEATS, clock.entries[part] / REPEATS)
        for part, seconds in clock.seconds.items()
    }


def group_kernels(kernels: Iterable[tuple[str, float, float]], wall_ms: float) -> Parts:
    """Groups of kernels (name, milliseconds and launches per call), and the time in which none ran.

    ``wall_ms`` is that of a call that was not traced.
    """
    spent: Parts = defaultdict(lambda: (0.0, 0.0))
    for name, milliseconds, count in kernels:
        fitting = (group for pattern, group in KERNELS if re.search(pattern, name, re.IGNORECASE))
        group = next(fitting, "other kernels")
        spent[group] = spent[group][0] + milliseconds, spent[group][1] + count
    busy = sum(milliseconds for milliseconds, _ in spent.values())
    spent[IDLE] = max(wall_ms - busy, 0.0), 0.0
    return spent


def device_parts(run: Run, call: tuple[Context, Noise], device: torch.device) -> tuple[Parts, str]:
    """Time of each group of kernels in a call, and the table of all kernels."""
    run(*call)
    wall = float(np.median([time_call(lambda: run(*call), device)[0] for _ in range(REPEATS)]))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(TRACED):
            run(*call)
        synchronise(device)
    averages = trace.key_averages()
    kernels = [
        (event.key, 1e-3 * event.self_device_time_total / TRACED, event.count / TRACED)
        for event in averages
        if event.device_type.name != "CPU"
    ]
    table = averages.table(sort_by="self_device_time_total", row_limit=25, max_name_column_width=90)
    return group_kernels(kernels, 1e3 * wall), str(table)


def profile_variant(variant: TimedVariant, ways: list[Way], task: Task) -> tuple[list[Row], str]:
    """Rows of every profiled way, and the same as text with the tables of kernels."""
    named = (*HOST, *DEVICE) if variant.planner.device.type == "cuda" else HOST
    chosen = [way for way in ways if way.name in named]
    advance = task(f"{variant.name}: profile", len(chosen))
    call, device = variant.call(0), variant.planner.device
    rows: list[Row] = []
    tables: list[str] = []
    for way in chosen:
        view = "host" if way.name in HOST else "device"
        if view == "host":
            parts = host_parts(way.make, call, device)
        else:
            parts, table = device_parts(way.make(), call, device)
            tables.append(f"{variant.name}, {way.name}\n{table}")
        rows += part_rows(variant.name, way.name, view, parts)
        advance(1)
    return rows, "\n".join([profile_text(rows), *tables])


def part_rows(subject: str, method: str, view: str, parts: Parts) -> list[Row]:
    """Rows of the parts of a call, the longest first."""
    whole = sum(ms for ms, _ in parts.values())
    about = {"subject": subject, "method": method, "view": view}
    return [
        {**about, "part": part, "ms": ms, "share": ms / whole, "count": count}
        for part, (ms, count) in sorted(parts.items(), key=lambda item: -item[1][0])
    ]


def profile_text(rows: Sequence[Row]) -> str:
    """The rows, aligned for a person."""
    heading = "\n{subject}, {method} ({view} time per call)"
    line = "  {part:<38} {ms:10.3f} ms {share:7.1%} {count:9.1f} times"
    lines = []
    for title, own in itertools.groupby(rows, lambda row: heading.format(**row)):
        lines += [title, *(line.format(**row) for row in own)]
    return "\n".join(lines) + "\n"
