"""Names of the methods, and the columns that most tables share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from muninn_bench.measure.statistics import mean, proportion
from muninn_bench.report.table import Row, Value
from muninn_bench.studies.ablation.analysis import Choice
from muninn_bench.studies.ablation.raw import Cell, Raw

TITLES = {
    "full": "full compute",
    "static": "our cache, static plan",
    "adaptive": "our cache, adaptive gate",
    "frontier": "our cache, frontier",
    "fewsteps": "fewer steps",
    "dpmsolver": "DPM-Solver++",
    "unipc": "UniPC",
    "taylor": "Taylor series",
    "fixedskip": "fixed skip",
    "probethresh": "probe threshold",
    "teacache": "TeaCache",
    "probegate": "probe gate, our forecast",
}
CERTIFIED = {
    "static": "certified cache, static plan",
    "adaptive": "certified cache, adaptive gate",
    "frontier": "certified cache, frontier",
}
BASELINES = tuple(TITLES)[4:-1]


def title_of(method: str, *, tuned: bool = True) -> str:
    """A method's name for people, with the tolerance it was tuned for.

    Not ``tuned``, it is the name in a table in which every row is certified.

    >>> title_of("static-0.05"), title_of("static-0.05", tuned=False)
    ('our cache, static plan (tuned for 0.05)', 'certified cache, static plan')
    """
    kind, _, rest = method.partition("-")
    if kind == "variant":
        return "variant: " + rest.replace("-", ", ")
    if not tuned:
        return {**TITLES, **CERTIFIED}[kind]
    return TITLES.get(kind, kind) + (f" (tuned for {rest})" if rest else "")


FIGURES: dict[str, Callable[[Raw, Cell, float], Value]] = {
    "evaluations": lambda raw, cell, _: mean(cell.evaluations),
    "evaluations / T": lambda raw, cell, _: float(cell.evaluations.mean() / raw.steps),
    "reuse": lambda raw, cell, _: float(1.0 - cell.evaluations.mean() / raw.steps),
    "median ms": lambda raw, cell, _: raw.milliseconds(cell),
    "speed-up": lambda raw, cell, _: raw.speed_up(cell),
    "mean deviation": lambda raw, cell, _: mean(cell.deviation),
    "p95 deviation": lambda raw, cell, _: float(np.quantile(cell.deviation, 0.95)),
    "violations": lambda raw, cell, tolerance: proportion(cell.deviation > tolerance),
    "collisions": lambda raw, cell, _: proportion(cell.collided),
    "success": lambda raw, cell, _: proportion(cell.success),
    "success / full, %": lambda raw, cell, _: relative_success(raw, cell),
}


def figures(raw: Raw, chosen: Cell | Choice, tolerance: float, names: Sequence[str]) -> Row:
    """The figures called ``names`` of a program on the test stream.

    Where nothing was chosen, the first says why and the others are empty.
    """
    if isinstance(chosen, Choice):
        if chosen.test is None:
            return {**dict.fromkeys(names), names[0]: chosen.why}
        chosen = chosen.test
    return {name: FIGURES[name](raw, chosen, tolerance) for name in names}


def relative_success(raw: Raw, cell: Cell) -> float | None:
    """Successes in percent of those of full compute on the same calls; None if not driven."""
    reference = raw.full.success[: len(cell.success)] if raw.full else cell.success[:0]
    if len(reference) < len(cell.success) or not reference.any():
        return None
    return float(100.0 * cell.success.sum() / reference.sum())
