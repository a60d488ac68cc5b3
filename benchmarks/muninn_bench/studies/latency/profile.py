"""Where the time of one call goes: by part of the program on the host, by kernel on a GPU.

Eager calls are host-bound, so their parts are timed by clocks at the seams of the runtime (the
network, gaps, the sampler, conditioning, reads by the host). A replayed graph has no seams; its
kernels are traced and grouped by name, and what is outside the network is the difference to a
graph of the evaluations alone.
"""

from __future__ import annotations

import functools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

import muninn.engines.rounds
from muninn.engines.gap import Gaps, StepTable
from muninn.engines.rounds import RoundRuntime
from muninn.engines.run_state import RunState
from muninn.engines.runtime import Runtime
from muninn.model.sampler import Sampler
from muninn.progress import Task
from muninn_bench.measure.machine import synchronise
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.turns import time_call
from muninn_bench.studies.latency.methods import (
    FULL_EAGER,
    FULL_GRAPH,
    GATED_EAGER,
    GATED_GRAPH,
    NETWORK_GRAPH,
    STATIC_EAGER,
    STATIC_GRAPH,
    Method,
)
from muninn_bench.studies.latency.rows import ProfileRow
from muninn_bench.studies.latency.subjects import InpaintedEnds, Subject
from muninn_bench.tasks.maze2d.planner import InpaintedDenoiser

NETWORK = "network"
GAP = "gaps: forecasts and look-back"
ESTIMATE = "error estimate, read, and plan"
SAMPLER = "sampler"
CONDITION = "conditioning"
READS = "reads by the host"
REST = "the rest"
IDLE = "no kernel running"

SEAMS: tuple[tuple[Any, str, str], ...] = (
    (InpaintedDenoiser, "__call__", NETWORK),
    (Gaps, "run", GAP),
    (muninn.engines.rounds, "vector_gap", GAP),
    (Runtime, "_plan_ahead", ESTIMATE),
    (RoundRuntime, "_plan", ESTIMATE),
    (Sampler, "step", SAMPLER),
    (Sampler, "convert", SAMPLER),
    (StepTable, "step", SAMPLER),
    (InpaintedEnds, "__call__", CONDITION),
    (RunState, "read", READS),
    (RoundRuntime, "_outcome", READS),
)
"""Owner, attribute and the part it belongs to; a part inside another counts for itself only."""

KERNELS: tuple[tuple[str, str], ...] = (
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

HOST = (FULL_EAGER, STATIC_EAGER, GATED_EAGER)
DEVICE = (
    FULL_GRAPH, NETWORK_GRAPH, STATIC_GRAPH, GATED_GRAPH, "full-compiled-graph", "full-last"
)  # fmt: skip
REPEATS = 5
TRACED = 2  # calls; one of full compute is some 20,000 kernels


@dataclass
class Clock:
    """Wall-clock time by part, each moment counted for the innermost part only."""

    stands_in: ClassVar[bool] = True  # is no part of the network that it times

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    entries: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _inside: list[str] = field(default_factory=lambda: [REST])
    _since: float = 0.0

    def start(self) -> None:
        """Begin; what follows is the rest until a part is entered."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count what has passed for the part that is entered."""
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block for ``name``."""
        self.stop()
        self._inside.append(name)
        self.entries[name] += 1
        try:
            yield
        finally:
            self.stop()
            self._inside.pop()


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    """Clocks at every seam, taken off again at the end.

    Raises:
        AttributeError: a seam is not where :data:`SEAMS` says.
    """
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in SEAMS]
    own = [name in vars(owner) for owner, name, _ in SEAMS]
    try:
        for (owner, name, part), (_, _, inner) in zip(SEAMS, kept, strict=True):
            setattr(owner, name, _timed(inner, clock, part))
        yield
    finally:
        for (owner, name, inner), here in zip(kept, own, strict=True):
            if here:
                setattr(owner, name, inner)
            else:
                delattr(owner, name)


def _timed(inner: Callable[..., Any], clock: Clock, part: str) -> Callable[..., Any]:
    @functools.wraps(inner)
    def outer(*arguments: Any, **named: Any) -> Any:
        with clock.part(part):
            return inner(*arguments, **named)

    return outer


def host_parts(subject: Subject, method: Method, repeats: int = REPEATS) -> list[ProfileRow]:
    """Mean wall-clock time of each part of a call.

    On a GPU the host does not wait for kernels, except where it reads: a part's time is that of
    launching it. The method is made with the clocks on: to one made before, they would be another
    network.
    """
    call, device = subject.call(0), subject.planner.device
    clock = Clock()
    with clocked(clock):
        run = method.make()
        run(*call)
        clock.seconds.clear()
        clock.entries.clear()
        for _ in range(repeats):
            synchronise(device)
            clock.start()
            run(*call)
            synchronise(device)
            clock.stop()
    total = sum(clock.seconds.values())
    return [
        ProfileRow(
            subject.name,
            method.name,
            "host",
            part,
            1e3 * seconds / repeats,
            seconds / total,
            clock.entries[part] / repeats,
        )
        for part, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1])
    ]


def kernel_group(name: str) -> str:
    """The group of a kernel, by its name.

    >>> kernel_group("void at::native::vectorized_elementwise_kernel<4>")
    'element-wise and indexing'
    """
    for pattern, group in KERNELS:
        if re.search(pattern, name, re.IGNORECASE):
            return group
    return "other kernels"


def device_parts(
    subject: Subject, method: str, run: Run, repeats: int = TRACED
) -> tuple[list[ProfileRow], str]:
    """Time of each group of kernels in a call, and the table of all kernels."""
    call, device = subject.call(0), subject.planner.device
    run(*call)
    wall = float(np.median([time_call(lambda: run(*call), device)[0] for _ in range(REPEATS)]))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(repeats):
            run(*call)
        synchronise(device)
    averages = trace.key_averages()
    kernels = [
        (event.key, 1e-3 * event.self_device_time_total / repeats, event.count / repeats)
        for event in averages
        if event.device_type.name != "CPU"
    ]
    table = averages.table(sort_by="self_device_time_total", row_limit=25, max_name_column_width=90)
    return group_kernels(subject.name, method, kernels, 1e3 * wall), str(table)


def group_kernels(
    subject: str, method: str, kernels: Sequence[tuple[str, float, float]], wall_ms: float
) -> list[ProfileRow]:
    """Rows of groups of kernels, and of the time in which none ran.

    Args:
        subject, method: names.
        kernels: name, milliseconds and launches per call.
        wall_ms: of a call that was not traced.
    """
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, milliseconds, count in kernels:
        spent[kernel_group(name)][0] += milliseconds
        spent[kernel_group(name)][1] += count
    busy = sum(milliseconds for milliseconds, _ in spent.values())
    spent[IDLE] = [max(wall_ms - busy, 0.0), 0.0]
    whole = max(wall_ms, busy)
    return [
        ProfileRow(subject, method, "device", part, milliseconds, milliseconds / whole, count)
        for part, (milliseconds, count) in sorted(spent.items(), key=lambda item: -item[1][0])
    ]


def profile_subject(
    subject: Subject, methods: Sequence[Method], task: Task
) -> tuple[list[ProfileRow], str]:
    """Rows of every profiled method, and the same as text with the tables of kernels."""
    chosen = [method for method in methods if method.name in (*HOST, *DEVICE)]
    advance = task(f"{subject.name}: profile", len(chosen))
    rows: list[ProfileRow] = []
    tables: list[str] = []
    for method in chosen:
        if method.name in HOST:
            rows += host_parts(subject, method)
        elif subject.planner.device.type == "cuda":
            own, table = device_parts(subject, method.name, method.make())
            rows += own
            tables.append(f"{subject.name}, {method.name}\n{table}")
        advance(1)
    return rows, "\n".join([profile_text(rows), *tables])


def profile_text(rows: Sequence[ProfileRow]) -> str:
    """The rows, aligned for a person."""
    lines = []
    last = ("", "", "")
    for row in rows:
        if (row.subject, row.method, row.view) != last:
            last = (row.subject, row.method, row.view)
            lines.append(f"\n{row.subject}, {row.method} ({row.view} time per call)")
        lines.append(f"  {row.part:<38} {row.ms:10.3f} ms {row.share:7.1%} {row.count:9.1f} times")
    return "\n".join(lines) + "\n"
