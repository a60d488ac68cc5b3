"""How close tuned samplers with fewer steps come to full compute, one row a method and count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from muninn.certify.metrics import resolve
from muninn.certify.paired import PairedCalls, call_seed
from muninn.progress import bars
from muninn_bench.measure.alternatives import (
    Alternative,
    AlternativeSearch,
    every_order,
)
from muninn_bench.task import Stream, Task, context_rows

COUNTS = (4, 6, 8, 10, 12, 15, 20, 30, 50)
TUNING_CALLS = 96
SHARE = 0.03
"""Of tuning calls that may exceed a tolerance; the default of :func:`muninn.tune`."""


def few_step_rows(
    task: Task,
    variant: str,
    *,
    counts: Sequence[int] = COUNTS,
    calls: int = 220,
    tolerance: float | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Deviations of the tuned alternatives on the first calls of test episodes.

    With as many evaluations as the sampler has steps there is nothing to tune, and the order
    closest to the sampler would hide what the others show, its step-size error: all are listed.

    Args:
        task, variant: what is sampled.
        counts: evaluations of a call.
        calls: to test on; at most :data:`TUNING_CALLS` others are tuned on.
        tolerance: that they are tuned for; the task's if None.
        names: of the alternatives; all by default.
        seed: of problems and noise.
        progress: show progress bars.
    """
    planner, limit = task.planner(variant), task.tolerance if tolerance is None else tolerance
    metric = resolve(task.metric(variant))[1]

    def paired(stream: Stream, count: int) -> PairedCalls:
        contexts = context_rows(task, variant, stream, count, seed)
        return PairedCalls(planner, contexts, count, metric, call_seed(seed, stream, 1))

    def row(alternative: Alternative) -> dict[str, Any]:
        every = list(range(test.count))
        deviation = test.measure_in_batches(alternative.table, every).deviation
        return {
            "method": alternative.name,
            "table": alternative.table.method,
            "evaluations": alternative.evaluations,
            "calls": test.count,
            "deviation_p50": float(np.median(deviation)),
            "deviation_p95": float(np.quantile(deviation, 0.95)),
            "deviation_max": float(deviation.max()),
            f"share_beyond_{limit:g}": float((deviation > limit).mean()),
        }

    test = paired(Stream.TEST, calls)
    tuning = paired(Stream.TUNE, min(TUNING_CALLS, calls))
    search = AlternativeSearch(tuning, limit, SHARE)
    rows: list[dict[str, Any]] = []
    with bars(progress) as bar:
        advance = bar("tuned alternatives", len(counts))
        for count in counts:
            if count == len(planner.sampler):
                found = every_order(planner, names)
            else:
                found = list(search.best(count, names).values())
            rows += [row(alternative) for alternative in found]
            advance(1)
    return rows
