"""How the study's tables are made: names of methods, texts, and the columns most tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from muninn_bench.measure.statistics import mean, proportion
from muninn_bench.report.table import Row, Table, Value
from muninn_bench.studies.ablation.analysis import NOT_MEASURED, Choice
from muninn_bench.studies.ablation.raw import Cell, Raw
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE

Maker = Callable[..., Iterator[Row | str]]

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
}
CERTIFIED = {
    "static": "certified cache, static plan",
    "adaptive": "certified cache, adaptive gate",
}
BASELINES = tuple(TITLES)[3:-1]


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


def told(text: str | None, raw: Raw, **given: Any) -> str:
    """A text on one line, what stands in braces filled in: the study's numbers, and those given."""
    usual = f" Unless said otherwise, the paper's method has {settings_text(raw.published)}."
    words = {
        "risk": RISK,
        "kept": 1.0 - RISK,
        "tolerance": TOLERANCE,
        "confidence": raw.confidence,
        "doubt": 1.0 - raw.confidence,
        "usual": usual if raw.published else "",
        "hardware": raw.timing.get("hardware", "hardware not recorded"),
    }
    return " ".join((text or "").split()).format(**{**words, **given})


def table(name: str, title: str, *, long: bool = False) -> Callable[[Maker], Callable[..., Table]]:
    """Make a table of a generator of rows, whose docstring stands above it; text is a note.

    Name, title and docstring are :func:`told`, with the generator's own keyword arguments.
    """

    def decorate(make: Maker) -> Callable[..., Table]:
        def made(raw: Raw, **given: Any) -> Table:
            found = list(make(raw, **given))
            rows = [row for row in found if isinstance(row, dict)]
            notes = [note for note in found if isinstance(note, str)]
            heads = [told(text, raw, **given) for text in (name, title, make.__doc__)]
            return Table(heads[0], heads[1], heads[2], rows, notes, long)

        return made

    return decorate


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


def figures(raw: Raw, chosen: Cell | Choice | None, tolerance: float, names: Sequence[str]) -> Row:
    """The figures called ``names`` of a program on the test stream.

    Where there is no program, the first says why and the others are empty.
    """
    cell = chosen.test if isinstance(chosen, Choice) else chosen
    if cell is None:
        why = chosen.why if isinstance(chosen, Choice) else NOT_MEASURED
        return {**dict.fromkeys(names), names[0]: why}
    return {name: FIGURES[name](raw, cell, tolerance) for name in names}


def relative_success(raw: Raw, cell: Cell) -> float | None:
    """Successes in percent of those of full compute on the same calls; None if not driven."""
    reference = raw.full.success[: len(cell.success)] if raw.full else cell.success[:0]
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
