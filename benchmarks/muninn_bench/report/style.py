"""How every figure looks: one style, one set of colours and names, files that repeat exactly."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muninn_bench.measure.statistics import Estimate

COLOURS = {
    "full": "#8a97a3",
    "muninn": "#1f66b0",
    "fewsteps": "#d1782a",
    "dpmsolver": "#3f8f5b",
    "unipc": "#8d5aa5",
    "taylor": "#b09a3e",
}
INK = "#1c2733"
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = CYCLE
"""Okabe and Ito's palette."""
TITLES = {
    "full": "Full",
    "muninn": "Muninn",
    "fewsteps": "Fewer steps",
    "dpmsolver": "DPM-Solver++",
    "unipc": "UniPC",
    "taylor": "Taylor series",
}


def subplots(rows: int, columns: int, width: float, height: float, **options: Any) -> Any:
    """Figure and axes in the project's style; sizes in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "muninn",
        }
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def outside_legend(figure: Any) -> None:
    """One legend for all axes, beside a single one or below several, never over data."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        entries = {**dict(zip(labels, handles, strict=True)), **entries}
    below = len(figure.axes) > 1
    place, columns = ("outside lower center", 3) if below else ("outside right upper", 1)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc=place, ncols=columns, fontsize=8.5, frameon=False
        )


def plain_ticks(axis: Any) -> None:
    """Numbers like 20 and 50 instead of powers of ten on a short logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def ticks(axis: Any, values: Sequence[float]) -> None:
    """Ticks at some values only."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def bars(axis: Any, at: Iterable[float], found: Iterable[Estimate | None], **look: Any) -> None:
    """Estimates with their intervals, where there are any."""
    known = [(x, own.value, own.low, own.high) for x, own in zip(at, found, strict=True) if own]
    if known:
        x, y, low, high = np.array(known).T
        spread = np.clip([y - low, high - y], 0, None)
        axis.errorbar(x, y, yerr=spread, markersize=5, capsize=2, elinewidth=0.8, **look)


def save(figure: Any, path: Path) -> Path:
    """Write a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def svg(figure: Any) -> str:
    """A picture as text that can stand in a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
