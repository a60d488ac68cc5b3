"""The picture: time of a call against its deviation, one panel per planner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muninn_bench.studies.latency.rows import Row

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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [row for row in rows if row.p50_ms is not None and row.deviation_p95 is not None]
    drawn = [row for row in drawn if row.trained]
    subjects = list(dict.fromkeys(row.subject for row in drawn))
    titles = list(dict.fromkeys(row.method_title for row in drawn))
    others = iter(_OTHERS * len(titles))
    colours = {title: _COLOURS.get(title) or next(others) for title in titles}
    columns = min(max(len(subjects), 1), 2)
    lines = -(-max(len(subjects), 1) // columns)
    keys = _keys(drawn, colours)
    across = 2 * columns
    legend = 0.2 + 0.18 * -(-len(keys) // across)  # inches
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(5.6 * columns, 4.2 * lines + legend), squeeze=False
    )
    for axis in axes.flat[len(subjects) :]:
        axis.set_visible(False)
    for axis, subject in zip(axes.flat, subjects, strict=False):
        _panel(axis, [row for row in drawn if row.subject == subject], colours)
    figure.tight_layout(rect=(0.0, legend / figure.get_figheight(), 1.0, 1.0))
    figure.legend(handles=keys, loc="lower center", ncols=across, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _keys(rows: Sequence[Row], colours: dict[str, str]) -> list[Any]:
    """Entries of the legend: colours say the method, hollow markers the engine."""
    from matplotlib.lines import Line2D

    methods = [
        Line2D([], [], color=colour, marker="o", linestyle="", label=title)
        for title, colour in colours.items()
    ]
    engines = [
        Line2D([], [], color="0.2", marker=marker, linestyle="", fillstyle="none", label=engine)
        for engine, marker in _MARKERS.items()
        if any(row.engine == engine for row in rows)
    ]
    return [*methods, *engines]


def _panel(axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    first = rows[0]
    positive = [row.deviation_p95 for row in rows if row.deviation_p95]
    floor = min(positive, default=1e-6) / 10.0
    for row in rows:
        axis.scatter(
            row.p50_ms,
            row.deviation_p95 or floor,
            color=colours[row.method_title],
            marker=_MARKERS[row.engine],
            s=46,
            alpha=0.85,
        )
        axis.plot(
            [row.p50_ms, row.p99_ms],
            [row.deviation_p95 or floor] * 2,
            color=colours[row.method_title],
            linewidth=1,
            alpha=0.6,
        )
    axis.set_title(f"{first.title}, {first.precision}", fontsize=10, fontweight="bold")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axhline(floor, color="0.8", linewidth=0.8, zorder=0)
    axis.annotate("0", (0.01, floor), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    axis.set_xlabel("milliseconds a call, p50 (line to p99)")
    axis.margins(x=0.12)
    axis.set_ylabel("deviation from Full eager, p95")
    axis.grid(alpha=0.25)
