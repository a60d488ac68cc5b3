"""The targets of the runtime, each with what was measured: met, missed, or not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muninn_bench.studies.latency.batches import CAPS
from muninn_bench.studies.latency.methods import (
    FULL_GRAPH,
    GATED_GRAPH,
    NETWORK_GRAPH,
    OWN_GRAPH,
    STATIC_EAGER,
    STATIC_GRAPH,
)
from muninn_bench.studies.latency.rows import BatchRow, Row

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
    """One target.

    Attributes:
        subject: which planner.
        promise: in words.
        limit: the figure to reach; None where the figure is only told.
        measured: the figure reached, or None.
        at_least: whether larger is better.
    """

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

    def __str__(self) -> str:
        found = "-" if self.measured is None else f"{self.measured:.3g}"
        if self.limit is not None:
            found += f", {'at least' if self.at_least else 'at most'} {self.limit:.3g}"
        return f"{self.subject}: {self.promise}: {found}: {self.verdict}"


def targets(device: str, rows: Sequence[Row], batches: Sequence[BatchRow]) -> list[Target]:
    """All targets of a device.

    Args:
        device: ``cpu`` or ``cuda``.
        rows: at batch 1.
        batches: throughput.
    """
    if device == "cpu":
        return list(_cpu(rows))
    return [*_graphs(rows), *_gates(rows), *_batches(batches)]


def _graphs(rows: Sequence[Row]) -> Iterable[Target]:
    for subject, limit in OVER_GRAPH.items():
        static = _find(rows, subject, STATIC_GRAPH)
        over_graph = static.over_graph if static else None
        over_eager = static.over_eager if static else None
        yield Target(subject, "static over Full in one graph", limit, over_graph, True)
        if subject in OVER_EAGER:
            yield Target(subject, "static over Full eager", OVER_EAGER[subject], over_eager, True)
        if subject in OUTSIDE:
            promise = "time outside the network over Full in one graph"
            yield Target(subject, promise, OUTSIDE[subject], outside(rows, subject), False)


def outside(rows: Sequence[Row], subject: str) -> float | None:
    """Time of the static plan beyond its evaluations alone, as a share of Full in one graph."""
    found = [_find(rows, subject, name) for name in (STATIC_GRAPH, NETWORK_GRAPH, FULL_GRAPH)]
    static, network, full = (row.p50_ms if row else None for row in found)
    if static is None or network is None or full is None:
        return None
    return (static - network) / full


def _gates(rows: Sequence[Row]) -> Iterable[Target]:
    for subject in OVER_GRAPH:
        static, gated = (_find(rows, subject, name) for name in (STATIC_GRAPH, GATED_GRAPH))
        promise = "gated over static, time per evaluation"
        measured = None
        if static and gated and per_evaluation(static) and per_evaluation(gated):
            measured = per_evaluation(gated) / per_evaluation(static)
        yield Target(subject, promise, GATED_OVER_STATIC, measured, False)
        yield Target(subject, "gated with a cap, p99 over p50", TAIL, _tail(gated), False)
        if subject in TRAINED:
            own = _find(rows, subject, OWN_GRAPH)
            yield Target(subject, "gated, own threshold, p99 over p50", None, _tail(own), False)


def _tail(row: Row | None) -> float | None:
    return row.p99_ms / row.p50_ms if row and row.p99_ms and row.p50_ms else None


def per_evaluation(row: Row) -> float:
    """Milliseconds of a call per evaluation; 0 where it was not measured."""
    return row.p50_ms / row.evaluations if row.p50_ms and row.evaluations else 0.0


def _batches(batches: Sequence[BatchRow]) -> Iterable[Target]:
    names = {"static": "static"}
    names |= {method: f"gated, cap {ratio:g} x static" for method, ratio in CAPS.items()}
    for subject in OVER_GRAPH:
        for method, name in names.items():
            own = [row for row in batches if row.subject == subject and row.method == method]
            row = min(own, key=lambda row: abs(row.batch - BATCH), default=None)
            batch = row.batch if row else BATCH
            promise = f"{name}, batch {batch}: speed-up over steps / evaluations"
            measured = row.over_full / row.ideal if row else None
            yield Target(subject, promise, BATCH_SHARE, measured, True)


def _cpu(rows: Sequence[Row]) -> Iterable[Target]:
    for subject in ("maze2d-fp32", "transformer-fp32"):
        static = _find(rows, subject, STATIC_EAGER)
        measured = None
        if static and static.over_eager and static.evaluations:
            measured = static.over_eager / (static.steps / static.evaluations)
        yield Target(
            subject, "static: speed-up over steps / evaluations", CPU_SHARE, measured, True
        )


def _find(rows: Sequence[Row], subject: str, method: str) -> Row | None:
    chosen = (row for row in rows if row.subject == subject and row.method == method)
    return next((row for row in chosen if row.p50_ms is not None), None)
