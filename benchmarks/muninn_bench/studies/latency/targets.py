"""The targets of the runtime, each with the measured figure: met, missed, or not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muninn_bench.studies.latency.measure import CAPS
from muninn_bench.studies.latency.rows import Row, share
from muninn_bench.studies.latency.variants import ON_CPU

OVER_GRAPH = {"unet63m-fp16": 4.4, "maze2d-fp16": 4.2, "policy63m-fp16": 4.2}
OVER_EAGER = {"unet63m-fp16": 12.0}
OUTSIDE = {"unet63m-fp16": 0.03}
TRAINED = ("maze2d-fp16",)
GATED_OVER_STATIC = 1.10
TAIL = 1.2
BATCH, BATCH_SHARE = 256, 0.8
CPU_SHARE = 0.9


@dataclass(frozen=True)
class Target:
    """A figure that a planner is to reach; no ``limit`` where it is only told."""

    subject: str
    promise: str
    limit: float | None
    measured: float | None
    at_least: bool

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

    def figure(subject: str, method: str, name: str = "p50_ms") -> float:
        """NaN where it was not measured: so is every figure that is made from it."""
        value = by_name.get((subject, method), {}).get(name)
        return math.nan if value is None else float(value)

    def ratio(subject: str, method: str, name: str, over: str) -> float:
        return figure(subject, method, name) / figure(subject, method, over)

    def add(name: str, promise: str, limit: float | None, got: float, larger: bool = False) -> None:
        measured = None if math.isnan(got) else got
        found.append(Target(name, promise, limit, measured, at_least=larger))

    for name in ON_CPU if device == "cpu" else ():
        evaluated = ratio(name, "static-eager", "evaluations", "steps")
        reached = figure(name, "static-eager", "over_eager") * evaluated
        add(name, "static: speed-up over steps / evaluations", CPU_SHARE, reached, True)
    planners = OVER_GRAPH if device == "cuda" else {}
    for name, limit in planners.items():
        over = figure(name, "static-graph", "over_graph")
        add(name, "static over Full in one graph", limit, over, True)
        if name in OVER_EAGER:
            over = figure(name, "static-graph", "over_eager")
            add(name, "static over Full eager", OVER_EAGER[name], over, True)
        if name in OUTSIDE:
            beyond = figure(name, "static-graph") - figure(name, "network-graph")
            words = "time outside the network over Full in one graph"
            add(name, words, OUTSIDE[name], beyond / figure(name, "full-graph"))
    for name in planners:
        gated, static = (
            ratio(name, f"{what}-graph", "p50_ms", "evaluations") for what in ("gated", "static")
        )
        add(name, "gated over static, time per evaluation", GATED_OVER_STATIC, gated / static)
        tail = ratio(name, "gated-graph", "p99_ms", "p50_ms")
        add(name, "gated with a cap, p99 over p50", TAIL, tail)
        if name in TRAINED:
            tail = ratio(name, "gated-own-graph", "p99_ms", "p50_ms")
            add(name, "gated, own threshold, p99 over p50", None, tail)
    gates = {method: f"gated, cap {cap:g} x static" for method, cap in CAPS.items()}
    for name in planners:
        for method, title in {"static": "static", **gates}.items():
            mine = [row for row in batches if (row["subject"], row["method"]) == (name, method)]
            row = min(mine, key=lambda row: abs(row["batch"] - BATCH), default=None)
            words = f"{title}, batch {row['batch'] if row else BATCH}"
            reached = share(row) if row else math.nan
            add(name, f"{words}: speed-up over steps / evaluations", BATCH_SHARE, reached, True)
    return found
