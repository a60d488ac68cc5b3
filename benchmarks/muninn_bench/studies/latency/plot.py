"""The picture: time of a call against its deviation, one panel per planner."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muninn_bench.report.style import save, subplots
from muninn_bench.studies.latency.rows import Row, shown

_COLOURS = {
    "Full": "#1a202c",
    "Full, channels last": "#718096",
    "Muninn static": "#c2570c",
    "Muninn static, channels last": "#e53e3e",
    "Muninn gated": "#d69e2e",
    "Muninn gated, own threshold": "#b7791f",
}
_OTHERS = ("#2b6cb0", "#2f855a", "#805ad5")
_MARKERS = {"eager": "o", "compiled": "s", "graph": "^", "compiled graph": "D"}


def plot_latency(path: Path, rows: Sequence[Row]) -> None:
    """Write the picture; a deviation of 0 (full compute itself) stands at the bottom.

    Networks with random weights are left out: their deviations mean nothing.
    """
    from matplotlib.lines import Line2D

    drawn = [row for row in rows if shown(row)["deviation_p95"] is not None]
    subjects = list(dict.fromkeys(row["subject"] for row in drawn))
    titles = list(dict.fromkeys(row["method_title"] for row in drawn))
    others = iter(_OTHERS * len(titles))
    colours = {title: _COLOURS.get(title) or next(others) for title in titles}
    columns = min(len(subjects), 2)
    lines = -(-len(subjects) // columns)
    used = {row["engine"] for row in drawn}
    engines = {engine: marker for engine, marker in _MARKERS.items() if engine in used}
    # Colours say the method, hollow markers the engine.
    entry = functools.partial(Line2D, [], [], linestyle="")
    keys = [entry(color=colour, marker="o", label=title) for title, colour in colours.items()]
    keys += [
        entry(color="0.2", marker=marker, fillstyle="none", label=engine)
        for engine, marker in engines.items()
    ]
    legend = 0.2 + 0.18 * -(-len(keys) // (2 * columns))  # inches
    figure, axes = subplots(lines, columns, 5.6 * columns, 4.2 * lines + legend, squeeze=False)
    for axis in axes.flat[len(subjects) :]:
        axis.set_visible(False)
    for axis, subject in zip(axes.flat, subjects, strict=False):
        _panel(axis, [row for row in drawn if row["subject"] == subject], colours)
    figure.legend(
        handles=keys, loc="outside lower center", ncols=2 * columns, fontsize=8, frameon=False
    )
    save(figure, path)


def _panel(axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    floor = min((row["deviation_p95"] for row in rows if row["deviation_p95"]), default=1e-6) / 10.0
    for row in rows:
        height, ends = row["deviation_p95"] or floor, [row["p50_ms"], row["p99_ms"]]
        look = {"color": colours[row["method_title"]], "marker": _MARKERS[row["engine"]]}
        axis.plot(ends, [height] * 2, **look, markevery=[0], linewidth=1, alpha=0.8)
    axis.set_title("{title}, {precision}".format(**rows[0]), fontsize=10, fontweight="bold")
    axis.set(xscale="log", yscale="log", ylabel="deviation from Full eager, p95")
    axis.set_xlabel("milliseconds a call, p50 (line to p99)")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axhline(floor, color="0.8", linewidth=0.8, zorder=0)
    axis.annotate("0", (0.01, floor), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    axis.margins(x=0.12)
    axis.grid(alpha=0.25)
