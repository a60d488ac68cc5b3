"""The targets of the runtime, each with the measured figure: met, missed, or not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from muninn_bench.studies.latency.growth import CAPS
from muninn_bench.studies.latency.rows import BatchRow, LatencyRow
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

    TABLE: ClassVar[str] = "planner=subject|target=promise|wanted|measured:.3g|verdict"
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

    @property
    def wanted(self) -> str:
        """The limit, for a table."""
        return "-" if self.limit is None else f"{'>=' if self.at_least else '<='} {self.limit:g}"

    def __str__(self) -> str:
        found = "-" if self.measured is None else f"{self.measured:.3g}"
        if self.limit is not None:
            found += f", {'at least' if self.at_least else 'at most'} {self.limit:.3g}"
        return f"{self.subject}: {self.promise}: {found}: {self.verdict}"


def targets(device: str, rows: Sequence[LatencyRow], batches: Sequence[BatchRow]) -> list[Target]:
    """All targets of a device, given its rows at batch 1 and of batches."""
    by_name = {(row.subject, row.method): row for row in rows}
    found: list[Target] = []

    def add(
        subject: str, promise: str, limit: float | None, measured: float, at_least: bool = False
    ) -> None:
        known = None if math.isnan(measured) else measured
        found.append(Target(subject, promise, limit, known, at_least))

    def figure(subject: str, method: str, name: str = "p50_ms") -> float:
        """NaN where it was not measured: so is every figure that is made from it."""
        value = getattr(by_name.get((subject, method)), name, None)
        return math.nan if value is None else float(value)

    def per_evaluation(subject: str, method: str) -> float:
        return figure(subject, method) / figure(subject, method, "evaluations")

    def tail(subject: str, method: str) -> float:
        return figure(subject, method, "p99_ms") / figure(subject, method)

    if device == "cpu":
        for name in ON_CPU:
            steps, spent, over = (
                figure(name, "static-eager", what)
                for what in ("steps", "evaluations", "over_eager")
            )
            words = "static: speed-up over steps / evaluations"
            add(name, words, CPU_SHARE, over * spent / steps, True)
        return found
    for name, limit in OVER_GRAPH.items():
        over = figure(name, "static-graph", "over_graph")
        add(name, "static over Full in one graph", limit, over, True)
        if name in OVER_EAGER:
            over = figure(name, "static-graph", "over_eager")
            add(name, "static over Full eager", OVER_EAGER[name], over, True)
        if name in OUTSIDE:
            static, network, full = (
                figure(name, f"{what}-graph") for what in ("static", "network", "full")
            )
            words = "time outside the network over Full in one graph"
            add(name, words, OUTSIDE[name], (static - network) / full)
    for name in OVER_GRAPH:
        ratio = per_evaluation(name, "gated-graph") / per_evaluation(name, "static-graph")
        add(name, "gated over static, time per evaluation", GATED_OVER_STATIC, ratio)
        add(name, "gated with a cap, p99 over p50", TAIL, tail(name, "gated-graph"))
        if name in TRAINED:
            own = tail(name, "gated-own-graph")
            add(name, "gated, own threshold, p99 over p50", None, own)
    gates = {method: f"gated, cap {ratio:g} x static" for method, ratio in CAPS.items()}
    for name in OVER_GRAPH:
        for method, title in {"static": "static", **gates}.items():
            mine = [row for row in batches if (row.subject, row.method) == (name, method)]
            row = min(mine, key=lambda row: abs(row.batch - BATCH), default=None)
            words = (
                f"{title}, batch {row.batch if row else BATCH}: speed-up over steps / evaluations"
            )
            add(name, words, BATCH_SHARE, row.share if row else math.nan, True)
    return found
