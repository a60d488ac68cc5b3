"""The rows that a run writes, and their CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from muninn.errors import InputError


@dataclass(frozen=True)
class Row:
    """One method on one subject at batch 1.

    Attributes:
        subject, title, parameters, precision, trained, horizon, dim, steps: of the planner.
        method, method_title, engine: what made the plans.
        evaluations: mean per call.
        p50_ms, p99_ms, max_ms: of the timed calls; None where the method could not run.
        calls, warm_up: how many of each.
        deviation_p95: from Full eager with the same noise, ``rms_step``.
        memory_mb: most memory beyond weights and other methods, capture included; None on a CPU.
        over_eager, over_graph: how much faster than Full eager, and than Full in one graph.
        hardware: in words.
        note: why it could not run.
    """

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


@dataclass(frozen=True)
class Call:
    """One timed call: what the figures of a :class:`Row` are made from."""

    subject: str
    method: str
    round: int
    call: int
    ms: float
    evaluations: int
    deviation: float | None


@dataclass(frozen=True)
class BatchRow:
    """Throughput of one method on a batch.

    Attributes:
        over_full: how much faster than the fastest Full on the same batch.
        ideal: steps per mean evaluation, what a cache of no cost would reach.
    """

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


@dataclass(frozen=True)
class GrowthRow:
    """One cell of the growth grid, Full and Muninn static."""

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
    """A part of the time of one call.

    Attributes:
        view: ``host`` is wall-clock time of the host, ``device`` that of kernels.
        part: of the work.
        ms: per call; share: of the call; count: entries or launches per call.
    """

    subject: str
    method: str
    view: str
    part: str
    ms: float
    share: float
    count: float


Kept = TypeVar("Kept", bound=Row | Call | BatchRow | GrowthRow | ProfileRow)

_READ: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "float | None": lambda text: float(text) if text else None,
}


def write_csv(path: Path, rows: Sequence[Any]) -> None:
    """Write rows of one kind; None is an empty entry."""
    if not rows:
        raise InputError(f"nothing to write to {path}")
    names = [entry.name for entry in fields(rows[0])]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow([_text(getattr(row, name)) for name in names])


def _text(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else value


def read_csv(path: Path, kind: type[Kept]) -> list[Kept]:
    """The rows of a file that :func:`write_csv` wrote; none if there is no file.

    Raises:
        InputError: the file holds other columns.
    """
    if not path.is_file():
        return []
    types: dict[str, str] = {entry.name: str(entry.type) for entry in fields(kind)}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != list(types):
            raise InputError(
                f"{path} has columns {reader.fieldnames}, expected {list(types)}; it was written "
                "by another version: remove it"
            )
        return [
            kind(**{name: _READ[types[name]](text) for name, text in entry.items()})
            for entry in reader
        ]


def merge(old: Iterable[Kept], new: Sequence[Kept]) -> list[Kept]:
    """New rows in the place of all old ones of their subjects: subjects can be run one by one.

    Ratios are within a subject, and a subject's methods are always of one run.
    """
    old, renewed = list(old), {row.subject for row in new}
    places = list(dict.fromkeys(row.subject for row in [*old, *new]))
    kept = [row for row in old if row.subject not in renewed]
    return sorted([*kept, *new], key=lambda row: places.index(row.subject))
