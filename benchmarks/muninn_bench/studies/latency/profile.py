"""Where the time of one call goes: by part of the program on the host, by kernel on a GPU.

Eager calls are host-bound, so their parts are timed by clocks at the seams of the runtime (the
network, gaps, the sampler, conditioning, reads by the host). A replayed graph has no seams; its
kernels are traced and grouped by name, and what is outside the network is the difference to a
graph of the evaluations alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from muninn.engines import rounds, runtime
from muninn.engines.gap import Gaps, StepTable
from muninn.engines.rounds import RoundRuntime
from muninn.engines.run_state import RunState
from muninn.model.sampler import Sampler
from muninn.progress import Task
from muninn_bench.measure.parts import Parts, Seams, device_parts, host_parts
from muninn_bench.planners.diffuser import InpaintedDenoiser
from muninn_bench.studies.latency.rows import Row
from muninn_bench.studies.latency.variants import InpaintedEnds, TimedVariant
from muninn_bench.studies.latency.ways import Way

SEAMS: Seams = {
    "network": ((InpaintedDenoiser, "__call__"),),
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


def profile_variant(variant: TimedVariant, ways: list[Way], task: Task) -> tuple[list[Row], str]:
    """Rows of every profiled way, and the same as text with the tables of kernels."""
    chosen = [way for way in ways if way.name in (*HOST, *DEVICE)]
    advance = task(f"{variant.name}: profile", len(chosen))
    call, device = variant.call(0), variant.planner.device
    rows: list[Row] = []
    tables: list[str] = []
    for way in chosen:
        if way.name in HOST:
            parts = host_parts(way.make, call, device, SEAMS)
            rows += part_rows(variant.name, way.name, "host", parts)
        elif device.type == "cuda":
            parts, table = device_parts(way.make(), call, device)
            rows += part_rows(variant.name, way.name, "device", parts)
            tables.append(f"{variant.name}, {way.name}\n{table}")
        advance(1)
    return rows, "\n".join([profile_text(rows), *tables])


def part_rows(subject: str, method: str, view: str, parts: Parts) -> list[Row]:
    """Rows of the parts of a call, the longest first."""
    whole = sum(ms for ms, _ in parts.values())
    keys = ("subject", "method", "view", "part", "ms", "share", "count")
    return [
        dict(zip(keys, (subject, method, view, part, ms, ms / whole, count), strict=True))
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
