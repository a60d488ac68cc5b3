"""The rows that a run writes, one CSV file for each kind, and what they say of the targets.

A row is a mapping, its keys are the columns of its file. ``subject`` is the planner's name and
``method`` that of the way in which it planned. What is not measured is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muninn.errors import InputError
from muninn_bench.report.table import cells, markdown

Row = dict[str, Any]
FEWEST_FOR_P99 = 50
"""Timed calls below which a 99th percentile is the largest call by another name."""

TABLES = {
    "": "method=method_title|engine|evaluations:.1f|p50 ms=p50_ms:ms|p99 ms=p99_ms:ms|"
    "max ms=max_ms:ms|calls|warm-up=warm_up|deviation p95=deviation_p95:.2g|"
    "memory MB=memory_mb:.0f|over Full eager={over_eager:.2f}x|over Full graph={over_graph:.2f}x",
    "batch": "planner=title|batch|method|engine|evaluations:.1f|p50 ms=p50_ms:ms|"
    "plans/s=plans_per_second:ms|over Full={over_full:.2f}x|share of steps/evaluations=share:.2f",
    "growth": "varied=axis|H=horizon|T=steps|d=dim|batch|parameters:,|evaluations|"
    "Full ms=full_ms:ms|Muninn ms=muninn_ms:ms|speed-up={over_full:.2f}x",
    "profile": "planner=subject|method|time of=view|part|ms:.3f|share:.1%|times=count:.0f",
    "target": "planner=subject|target=promise|wanted|measured:.3g|verdict",
}
"""Columns of each kind, as :func:`muninn_bench.report.table.cells` reads them."""

OVER_GRAPH = {"unet63m-fp16": 4.4, "maze2d-fp16": 4.2, "policy63m-fp16": 4.2}
OVER_EAGER = {"unet63m-fp16": 12.0}
OUTSIDE = {"unet63m-fp16": 0.03}
TRAINED = ("maze2d-fp16",)
ON_CPU = ("maze2d-fp32", "transformer-fp32")
GATED_OVER_STATIC = 1.10
TAIL = 1.2
BATCH, BATCH_SHARE = 256, 0.8
CPU_SHARE = 0.9
CAPS = {"gated": 1.5, "gated, loose cap": 2.0}
"""Gates by the ratio of their cap to the static plan's evaluations: a batch lasts as long as its
slowest row, so the cap decides what a batch costs."""


def table(kind: str, rows: Sequence[Row]) -> str:
    """Rows of one of :data:`TABLES` in Markdown."""
    return markdown(*cells(TABLES[kind], rows))


def shown(row: Row) -> Row:
    """A row as a table shows it: no p99 of few calls, no deviation of random weights."""
    if row["calls"] < FEWEST_FOR_P99:
        row = {**row, "p99_ms": None}
    return row if row["trained"] else {**row, "deviation_p95": None}


def share(row: Row) -> float:
    """Of steps / evaluations, the speed-up of a cache of no cost, that a batch reached."""
    return float(row["over_full"] / row["ideal"])


def merge(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """New rows in the place of all old ones of their planners: planners can be run one by one.

    Ratios are within a planner, and all rows of a planner are of one run.

    Raises:
        InputError: the old rows have other columns.
    """
    if old and new and list(old[0]) != list(new[0]):
        raise InputError(
            f"the file has columns {list(old[0])}, expected {list(new[0])}; it was written by "
            "another version: remove it"
        )
    renewed = {row["subject"] for row in new}
    places = list(dict.fromkeys(row["subject"] for row in [*old, *new]))
    kept = [row for row in old if row["subject"] not in renewed]
    return sorted([*kept, *new], key=lambda row: places.index(row["subject"]))


@dataclass(frozen=True)
class Target:
    """A figure that a planner is to reach; no ``limit`` where it is only told."""

    subject: str
    promise: str
    limit: float | None
    measured: float | None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, ``not measured``, or ``for information`` where there is no limit.

        >>> Target("a", "speed-up", 4.4, 4.5, at_least=True).verdict
        'met'
        """
        if self.measured is None:
            return "not measured"
        if self.limit is None:
            return "for information"
        met = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "met" if met else "missed"

    def row(self) -> Row:
        """For the table of targets."""
        sign = ">=" if self.at_least else "<="
        wanted = None if self.limit is None else f"{sign} {self.limit:g}"
        return {**vars(self), "wanted": wanted, "verdict": self.verdict}

    def __str__(self) -> str:
        found = "-" if self.measured is None else f"{self.measured:.3g}"
        if self.limit is not None:
            found += f", {'at least' if self.at_least else 'at most'} {self.limit:.3g}"
        return f"{self.subject}: {self.promise}: {found}: {self.verdict}"


def targets(device: str, rows: Sequence[Row], batches: Sequence[Row]) -> list[Target]:
    """All targets of a device, given its rows at batch 1 and of batches."""
    by_name = {(row["subject"], row["method"]): row for row in rows}
    found: list[Target] = []

    def of(subject: str, method: str, name: str = "p50_ms", over: str = "") -> float:
        """A figure, or its ratio; NaN where it was not measured: so is all that is made from it."""
        value = by_name.get((subject, method), {}).get(name)
        number = math.nan if value is None else float(value)
        return number / of(subject, method, over) if over else number

    def add(name: str, promise: str, limit: float | None, got: float, larger: bool = False) -> None:
        found.append(Target(name, promise, limit, None if math.isnan(got) else got, larger))

    if device == "cpu":
        for name in ON_CPU:
            reached = of(name, "static-eager", "over_eager")
            reached *= of(name, "static-eager", "evaluations", "steps")
            add(name, "static: speed-up over steps / evaluations", CPU_SHARE, reached, True)
        return found
    for name, limit in OVER_GRAPH.items():
        over = of(name, "static-graph", "over_graph")
        add(name, "static over Full in one graph", limit, over, True)
        if name in OVER_EAGER:
            over = of(name, "static-graph", "over_eager")
            add(name, "static over Full eager", OVER_EAGER[name], over, True)
        if name in OUTSIDE:
            beyond = of(name, "static-graph") - of(name, "network-graph")
            words = "time outside the network over Full in one graph"
            add(name, words, OUTSIDE[name], beyond / of(name, "full-graph"))
    for name in OVER_GRAPH:
        each = of(name, "gated-graph", over="evaluations")
        each /= of(name, "static-graph", over="evaluations")
        add(name, "gated over static, time per evaluation", GATED_OVER_STATIC, each)
        tail = of(name, "gated-graph", "p99_ms", "p50_ms")
        add(name, "gated with a cap, p99 over p50", TAIL, tail)
        if name in TRAINED:
            tail = of(name, "gated-own-graph", "p99_ms", "p50_ms")
            add(name, "gated, own threshold, p99 over p50", None, tail)
    gates = {method: f"gated, cap {cap:g} x static" for method, cap in CAPS.items()}
    for name in OVER_GRAPH:
        for method, title in {"static": "static", **gates}.items():
            mine = [row for row in batches if (row["subject"], row["method"]) == (name, method)]
            row = min(mine, key=lambda row: abs(row["batch"] - BATCH), default=None)
            words = f"{title}, batch {row['batch'] if row else BATCH}"
            reached = share(row) if row else math.nan
            add(name, f"{words}: speed-up over steps / evaluations", BATCH_SHARE, reached, True)
    return found
