"""A table of the study, its numbers with intervals, and the columns most tables share."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import bootstrap_mean, wilson
from muninn_bench.studies.ablation.analysis import NOT_MEASURED, Choice
from muninn_bench.studies.ablation.cells import Cell
from muninn_bench.studies.ablation.folder import Raw


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Share(Estimate):
    """A proportion with its 95% interval."""


Value = str | int | float | Estimate | None

TITLES = {
    "full": "full compute",
    "static": "our cache, static plan",
    "adaptive": "our cache, adaptive gate",
    "fewsteps": "fewer steps",
    "dpmsolver": "DPM-Solver++",
    "unipc": "UniPC",
    "taylor": "Taylor series",
    "fixedskip": "fixed skip",
    "probethresh": "probe threshold",
    "teacache": "TeaCache",
    "probegate": "probe gate, our forecast",
    "variant": "variant",
    "paper": "paper",
}
CERTIFIED = {
    "static": "certified cache, static plan",
    "adaptive": "certified cache, adaptive gate",
}
BASELINES = (
    "fewsteps", "dpmsolver", "unipc", "taylor", "fixedskip", "probethresh", "teacache",
)  # fmt: skip


def title_of(method: str, *, tuned: bool = True) -> str:
    """A method's name for people, with the tolerance it was tuned for unless told otherwise.

    >>> title_of("static-0.05"), title_of("static-0.05", tuned=False)
    ('our cache, static plan (tuned for 0.05)', 'our cache, static plan')
    """
    if method.startswith("variant-"):
        return "variant: " + method.removeprefix("variant-").replace("-", ", ")
    kind, _, tolerance = method.partition("-")
    name = TITLES.get(kind, kind)
    return f"{name} (tuned for {tolerance})" if tolerance and tuned else name


def member_of(choice: Choice) -> Value:
    """The chosen member's place in its family, or ``full``; None where nothing was chosen."""
    return None if choice.test is None else "full" if choice.place < 0 else choice.place


@dataclass(frozen=True)
class Table:
    """One table, ready to be printed or written.

    Attributes:
        name: of its file, without ending.
        title: heading.
        reading: how to read it and what is computed.
        header: one name per column.
        rows: one value per column; None is empty.
        notes: sentences computed from the data.
        long: whether a page should fold it.
    """

    name: str
    title: str
    reading: str
    header: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    notes: list[str] = field(default_factory=list)
    long: bool = False

    def text(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows as short strings."""
        return list(self.header), [[short(value) for value in row] for row in self.rows]

    def markdown(self) -> str:
        """The table alone, in GitHub's markdown; columns that are empty throughout are left out."""
        header, rows = self.text()
        if not rows:
            return f"({NOT_MEASURED})"
        shown = [at for at in range(len(header)) if any(row[at] for row in rows)]
        lines = [
            " | ".join(header[at] for at in shown),
            " | ".join("---" if self._words(at) else "---:" for at in shown),
            *(" | ".join(row[at] for at in shown) for row in rows),
        ]
        return "\n".join(f"| {line} |" for line in lines)

    def _words(self, at: int) -> bool:
        """Whether a column holds words only, which read better from the left."""
        return all(row[at] is None or isinstance(row[at], str) for row in self.rows)

    def csv(self) -> str:
        """Comma-separated text; a figure with an interval takes three columns."""
        wide = [
            any(isinstance(row[at], Estimate) for row in self.rows)
            for at in range(len(self.header))
        ]
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        header: list[str] = []
        for name, spread in zip(self.header, wide, strict=True):
            header += [name, f"{name} low", f"{name} high"] if spread else [name]
        writer.writerow(header)
        for row in self.rows:
            cells: list[str] = []
            for value, spread in zip(row, wide, strict=True):
                if isinstance(value, Estimate):
                    cells += [_exact(value.value), _exact(value.low), _exact(value.high)]
                else:
                    cells += [_exact(value), "", ""] if spread else [_exact(value)]
            writer.writerow(cells)
        return stream.getvalue()


def short(value: Value) -> str:
    """A value for people: three digits, interval in brackets, NaN and None empty.

    >>> short(0.051234), short(1234.56), short(Estimate(20.44, 20.0, 21.0)), short(None)
    ('0.0512', '1235', '20.4 [20, 21]', '')
    >>> short(Share(0.0005, 0.0001, 0.0199))
    '0.001 [0.000, 0.020]'
    """
    if isinstance(value, Estimate):
        digits = ".3f" if isinstance(value, Share) else ""
        numbers = (value.value, value.low, value.high)
        middle, *ends = [f"{number:{digits}}" if digits else short(number) for number in numbers]
        return middle if ends == [middle, middle] else f"{middle} [{', '.join(ends)}]"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}"
    return str(value)


def _exact(value: str | int | float | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def proportion(hits: npt.NDArray[np.bool_]) -> Share | None:
    """Share with its Wilson interval; None of nothing."""
    if not len(hits):
        return None
    count = int(hits.sum())
    return Share(count / len(hits), *wilson(count, len(hits)))


def mean(values: FloatArray) -> Estimate | None:
    """Mean with its bootstrap interval; None of nothing."""
    if not len(values):
        return None
    data = np.ascontiguousarray(values, dtype=np.float64)
    return Estimate(float(data.mean()), *_interval(data.tobytes()))


@cache
def _interval(data: bytes) -> tuple[float, float]:
    """Kept, since several tables report the same cell and one interval takes up to a second."""
    return bootstrap_mean(np.frombuffer(data, dtype=np.float64))


FIGURES = (
    "evaluations", "evaluations / T", "reuse", "median ms", "speed-up", "mean deviation",
    "p95 deviation", "violations", "collisions", "success", "success / full, %",
)  # fmt: skip


def figures(
    raw: Raw, chosen: Cell | Choice | None, tolerance: float, names: Sequence[str] = FIGURES
) -> tuple[Value, ...]:
    """The figures called ``names`` of a program on the test stream.

    Where there is no program, the first says why and the others are empty.
    """
    cell = chosen.test if isinstance(chosen, Choice) else chosen
    if cell is None or not len(cell.deviation):
        why = chosen.why if isinstance(chosen, Choice) else ""
        return (why or NOT_MEASURED, *[None] * (len(names) - 1))
    return tuple(_figure(raw, cell, tolerance, name) for name in names)


def _figure(raw: Raw, cell: Cell, tolerance: float, name: str) -> Value:
    if name == "evaluations":
        return mean(cell.evaluations)
    if name == "evaluations / T":
        return float(cell.evaluations.mean() / raw.steps)
    if name == "reuse":
        return float(1.0 - cell.evaluations.mean() / raw.steps)
    if name == "median ms":
        seconds = raw.seconds(cell)
        return None if seconds is None else 1e3 * seconds
    if name == "speed-up":
        return raw.speed_up(cell)
    if name == "mean deviation":
        return mean(cell.deviation)
    if name == "p95 deviation":
        return float(np.quantile(cell.deviation, 0.95))
    if name == "violations":
        return proportion(cell.deviation > tolerance)
    if name == "collisions":
        return proportion(cell.collided)
    if name == "success":
        return proportion(cell.success)
    return relative_success(raw, cell)


def relative_success(raw: Raw, cell: Cell) -> float | None:
    """Successes in percent of those of full compute on the same calls; None if not driven."""
    reference = raw.full().success[: len(cell.success)]
    if not len(cell.success) or len(reference) < len(cell.success) or not reference.any():
        return None
    return float(100.0 * cell.success.sum() / reference.sum())


def settings_text(settings: dict[str, Any]) -> str:
    """Settings in one short line.

    >>> settings_text({"threshold": 0.1, "look_back": True})
    'threshold 0.1, look_back True'
    """
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
        if not isinstance(value, dict | list)
    )
