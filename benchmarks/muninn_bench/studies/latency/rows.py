"""The rows that a run writes, one CSV file for each kind, and their tables in Markdown.

A row is a mapping, its keys are the columns of its file. ``subject`` is the planner's name and
``method`` that of the way in which it planned. What is not measured is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muninn.errors import InputError
from muninn_bench.report.table import markdown

Row = dict[str, Any]
FEWEST_FOR_P99 = 50
"""Timed calls below which a 99th percentile is the largest call by another name."""

TABLES = {
    "": "method=method_title|engine|evaluations:.1f|p50 ms=p50_ms:ms|p99 ms=p99_ms:ms|"
    "max ms=max_ms:ms|calls|warm-up=warm_up|deviation p95=deviation_p95:.2g|"
    "memory MB=memory_mb:.0f|over Full eager=over_eager:x|over Full graph=over_graph:x",
    "batch": "planner=title|batch|method|engine|evaluations:.1f|p50 ms=p50_ms:ms|"
    "plans/s=plans_per_second:ms|over Full=over_full:x|share of steps/evaluations=share:.2f",
    "growth": "varied=axis|H=horizon|T=steps|d=dim|batch|parameters:,|evaluations|"
    "Full ms=full_ms:ms|Muninn ms=muninn_ms:ms|speed-up=over_full:x",
    "profile": "planner=subject|method|time of=view|part|ms:.3f|share:.1%|times=count:.0f",
    "target": "planner=subject|target=promise|wanted|measured:.3g|verdict",
}
"""Columns of each kind, as ``heading=key:format``, the key only where it is not the heading.
Formats ``ms`` and ``x`` are those of :func:`cell`, others are Python's."""


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


def table(kind: str, rows: Sequence[Row]) -> str:
    """Rows of one of :data:`TABLES` in Markdown."""
    columns = [column.partition(":") for column in TABLES[kind].split("|")]
    keys = [(*named.partition("="), form) for named, _, form in columns]
    lines = [[cell(row[key or heading], form) for heading, _, key, form in keys] for row in rows]
    return markdown([heading for heading, *_ in keys], lines)


def cell(value: Any, form: str) -> str:
    """A value in a format of :data:`TABLES`; None is a dash.

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
