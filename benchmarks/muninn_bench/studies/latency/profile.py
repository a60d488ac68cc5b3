"""Where the time of one call goes: by part of the program on the host, by kernel on a GPU.

Eager calls are host-bound, so their parts are timed by clocks at the seams of the runtime (the
network, gaps, the sampler, conditioning, reads by the host). A replayed graph has no seams; its
kernels are traced and grouped by name, and what is outside the network is the difference to a
graph of the evaluations alone.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import muninn.engines.rounds
import muninn.engines.runtime
from muninn.engines.rounds import RoundRuntime
from muninn.engines.run_state import RunState
from muninn.engines.runtime import Runtime
from muninn.engines.vector_gap import StepTable
from muninn.model.sampler import Sampler
from muninn.progress import Task
from muninn_bench.measure.clock import Clock
from muninn_bench.measure.machine import synchronise
from muninn_bench.measure.turns import time_call
from muninn_bench.studies.latency.rows import Row
from muninn_bench.studies.latency.variants import InpaintedEnds, TimedVariant
from muninn_bench.studies.latency.ways import Way
from muninn_bench.tasks.maze2d.planner import InpaintedDenoiser

NETWORK = "network"
GAP = "gaps: forecasts and look-back"
ESTIMATE = "error estimate, read, and plan"
SAMPLER = "sampler"
CONDITION = "conditioning"
READS = "reads by the host"
IDLE = "no kernel running"

SEAMS: tuple[tuple[Any, str, str], ...] = (
    (InpaintedDenoiser, "__call__", NETWORK),
    (muninn.engines.runtime, "run_gap", GAP),
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

HOST = ("full-eager", "static-eager", "gated-eager")
DEVICE = (
    "full-graph", "network-graph", "static-graph", "gated-graph", "full-compiled-graph", "full-last"
)  # fmt: skip
REPEATS = 5
TRACED = 2  # calls; one of full compute is some 20,000 kernels


def host_parts(variant: TimedVariant, way: Way, repeats: int = REPEATS) -> list[Row]:
    """Mean wall-clock time of each part of a call.

    On a GPU the host does not wait for kernels, except where it reads: a part's time is that of
    launching it. The way is made with the clocks on: to one made before, they would be another
    network.
    """
    call, device = variant.call(0), variant.planner.device
    clock = Clock()
    with clock.at(SEAMS):
        run = way.make()
        run(*call)
        synchronise(device)
        clock.start()
        for _ in range(repeats):
            run(*call)
            synchronise(device)
        clock.stop()
    parts = {
        part: (1e3 * seconds / repeats, clock.entries[part] / repeats)
        for part, seconds in clock.seconds.items()
    }
    return _rows(variant.name, way.name, "host", parts)


def _rows(subject: str, method: str, view: str, parts: dict[str, tuple[float, float]]) -> list[Row]:
    """Rows of parts, given as milliseconds and count; the longest first."""
    whole = sum(milliseconds for milliseconds, _ in parts.values())
    keys = ("subject", "method", "view", "part", "ms", "share", "count")
    return [
        dict(zip(keys, (subject, method, view, part, ms, ms / whole, count), strict=True))
        for part, (ms, count) in sorted(parts.items(), key=lambda item: -item[1][0])
    ]


def kernel_group(name: str) -> str:
    """The group of a kernel, by its name.

    >>> kernel_group("void at::native::vectorized_elementwise_kernel<4>")
    'element-wise and indexing'
    """
    fitting = (group for pattern, group in KERNELS if re.search(pattern, name, re.IGNORECASE))
    return next(fitting, "other kernels")


def device_parts(variant: TimedVariant, way: Way, repeats: int = TRACED) -> tuple[list[Row], str]:
    """Time of each group of kernels in a call, and the table of all kernels."""
    call, device, run = variant.call(0), variant.planner.device, way.make()
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
    return group_kernels(variant.name, way.name, kernels, 1e3 * wall), str(table)


def group_kernels(
    subject: str, method: str, kernels: Sequence[tuple[str, float, float]], wall_ms: float
) -> list[Row]:
    """Rows of groups of kernels, and of the time in which none ran.

    Args:
        subject, method: names.
        kernels: name, milliseconds and launches per call.
        wall_ms: of a call that was not traced.
    """
    spent: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for name, milliseconds, count in kernels:
        before = spent[kernel_group(name)]
        spent[kernel_group(name)] = before[0] + milliseconds, before[1] + count
    busy = sum(milliseconds for milliseconds, _ in spent.values())
    spent[IDLE] = max(wall_ms - busy, 0.0), 0.0
    return _rows(subject, method, "device", spent)


def profile_variant(
    variant: TimedVariant, ways: Sequence[Way], task: Task
) -> tuple[list[Row], str]:
    """Rows of every profiled way, and the same as text with the tables of kernels."""
    chosen = [way for way in ways if way.name in (*HOST, *DEVICE)]
    advance = task(f"{variant.name}: profile", len(chosen))
    rows: list[Row] = []
    tables: list[str] = []
    for way in chosen:
        if way.name in HOST:
            rows += host_parts(variant, way)
        elif variant.planner.device.type == "cuda":
            own, table = device_parts(variant, way)
            rows += own
            tables.append(f"{variant.name}, {way.name}\n{table}")
        advance(1)
    return rows, "\n".join([profile_text(rows), *tables])


def profile_text(rows: Sequence[Row]) -> str:
    """The rows, aligned for a person."""
    heading = "\n{subject}, {method} ({view} time per call)"
    line = "  {part:<38} {ms:10.3f} ms {share:7.1%} {count:9.1f} times"
    lines = []
    for title, own in itertools.groupby(rows, lambda row: heading.format(**row)):
        lines += [title, *(line.format(**row) for row in own)]
    return "\n".join(lines) + "\n"
