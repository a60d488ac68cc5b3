"""The rows that a run writes, one CSV file for each kind; fields are the columns of the files.

``TABLE`` names the columns of a kind in Markdown, as ``heading=attribute:format``, the attribute
only where it is not the heading. Formats ``ms`` and ``x`` are those of :func:`cell`, others are
Python's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from muninn_bench.report.table import markdown

FEWEST_FOR_P99 = 50
"""Timed calls below which a 99th percentile is the largest call by another name."""


@dataclass(frozen=True)
class LatencyRow:
    """One way to plan with one planner (``subject``), at batch 1.

    Attributes:
        evaluations: mean per call.
        p50_ms, p99_ms, max_ms: of the timed calls; None where the way could not run.
        calls, warm_up: how many of each.
        deviation_p95: from Full eager with the same noise, ``rms_step``.
        memory_mb: most memory beyond weights and other ways, capture included; None on a CPU.
        over_eager, over_graph: how much faster than Full eager, and than Full in one graph.
        note: why it could not run.
    """

    TABLE: ClassVar[str] = (
        "method=method_title|engine|evaluations:.1f|p50 ms=p50_ms:ms|p99 ms=shown_p99:ms|"
        "max ms=max_ms:ms|calls|warm-up=warm_up|deviation p95=shown_deviation:.2g|"
        "memory MB=memory_mb:.0f|over Full eager=over_eager:x|over Full graph=over_graph:x"
    )
    subject: str
    title: str
    parameters: int
    precision: str
    trained: bool
    horizon: int
    dim: int
    steps: int
    method: str
    method_title: str
    engine: str
    evaluations: float | None
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    calls: int
    warm_up: int
    deviation_p95: float | None
    memory_mb: float | None
    over_eager: float | None
    over_graph: float | None
    hardware: str
    note: str

    @property
    def shown_p99(self) -> float | None:
        """The 99th percentile where there are calls enough for one."""
        return self.p99_ms if self.calls >= FEWEST_FOR_P99 else None

    @property
    def shown_deviation(self) -> float | None:
        """The deviation of a trained network: plans of random weights say nothing."""
        return self.deviation_p95 if self.trained else None


@dataclass(frozen=True)
class TimedCall:
    """One timed call: the figures of a :class:`LatencyRow` are made from them."""

    subject: str
    method: str
    round: int
    call: int
    ms: float
    evaluations: int
    deviation: float | None


@dataclass(frozen=True)
class BatchRow:
    """Throughput on a batch, over the fastest Full; a cache of no cost would reach ``ideal``."""

    TABLE: ClassVar[str] = (
        "planner=title|batch|method|engine|evaluations:.1f|p50 ms=p50_ms:ms|"
        "plans/s=plans_per_second:ms|over Full=over_full:x|share of steps/evaluations=share:.2f"
    )
    subject: str
    title: str
    batch: int
    method: str
    engine: str
    evaluations: float
    p50_ms: float
    plans_per_second: float
    over_full: float
    ideal: float
    hardware: str

    @property
    def share(self) -> float:
        """Of the ideal speed-up that was reached."""
        return self.over_full / self.ideal


@dataclass(frozen=True)
class GrowthRow:
    """One cell of the growth grid, Full and Muninn static."""

    TABLE: ClassVar[str] = (
        "varied=axis|H=horizon|T=steps|d=dim|batch|parameters:,|evaluations|Full ms=full_ms:ms|"
        "Muninn ms=muninn_ms:ms|speed-up=over_full:x"
    )
    subject: str
    axis: str
    value: int
    horizon: int
    steps: int
    dim: int
    batch: int
    parameters: int
    engine: str
    evaluations: int
    full_ms: float
    muninn_ms: float
    over_full: float
    hardware: str


@dataclass(frozen=True)
class ProfileRow:
    """A part of one call: time of the host or of the device's kernels, entries or launches."""

    TABLE: ClassVar[str] = (
        "planner=subject|method|time of=view|part|ms:.3f|share:.1%|times=count:.0f"
    )
    subject: str
    method: str
    view: str
    part: str
    ms: float
    share: float
    count: float


AnyRow = TypeVar("AnyRow", LatencyRow, TimedCall, BatchRow, GrowthRow, ProfileRow)


def merge(old: Sequence[AnyRow], new: Sequence[AnyRow]) -> list[AnyRow]:
    """New rows in the place of all old ones of their planners: planners can be run one by one.

    Ratios are within a planner, and all rows of a planner are of one run.
    """
    renewed = {row.subject for row in new}
    places = list(dict.fromkeys(row.subject for row in [*old, *new]))
    kept = [row for row in old if row.subject not in renewed]
    return sorted([*kept, *new], key=lambda row: places.index(row.subject))


def table(layout: str, rows: Sequence[Any]) -> str:
    """Rows in Markdown, laid out as ``TABLE`` says."""
    columns = [column.partition(":") for column in layout.split("|")]
    places = [(named.partition("="), form) for named, _, form in columns]
    return markdown(
        [heading for (heading, _, _), _ in places],
        [
            [cell(getattr(row, name or head), form) for (head, _, name), form in places]
            for row in rows
        ],
    )


def cell(value: Any, form: str) -> str:
    """A value in a format of a ``TABLE``; None is a dash.

    >>> cell(177.31, "ms"), cell(4.234, "ms"), cell(4.5, "x"), cell(None, "x")
    ('177', '4.23', '4.50x', '-')
    """
    if value is None:
        return "-"
    if form == "x":
        return f"{value:.2f}x"
    if form == "ms":  # three digits, or the whole number where it has more
        form = ".0f" if value >= 100.0 else ".3g"
    return format(value, form)
