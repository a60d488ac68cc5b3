"""Programs against each other: frontier, time, promises and risks. Makers return (figure, caption).

A maker returns None where the folder holds nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from muninn_bench.studies.ablation.analysis import certified
from muninn_bench.studies.ablation.cells import TEST, Cell
from muninn_bench.studies.ablation.folder import RISK, UNITS, Raw
from muninn_bench.studies.ablation.tables import BASELINES, CERTIFIED, TITLES, proportion, title_of
from muninn_bench.studies.ablation.tables_paper import risk_programs

WIDTH = 9.0  # inches; at 100 dots each about as wide as a README
INK = "#1c2733"
# Okabe and Ito's palette and darker relatives; markers tell the lines apart without colour.
STYLES: dict[str, tuple[str, str]] = {
    "static": ("#0072B2", "o"),
    "adaptive": ("#56B4E9", "D"),
    "fewsteps": ("#E69F00", "v"),
    "dpmsolver": ("#009E73", "^"),
    "unipc": ("#0B5D45", "<"),
    "taylor": ("#CC79A7", "s"),
    "fixedskip": ("#999999", "x"),
    "probethresh": ("#8C6D1F", "+"),
    "teacache": ("#B8A000", "1"),
    "probegate": ("#332288", "*"),
}
PAPER = {"algorithm": ("#D55E00", "h"), "appendix": ("#F0A070", "d"), "mended": ("#5A2400", "X")}
Made = tuple[Any, str] | None
Points = list[tuple[float, float]]


def subplots(columns: int, height: float, **options: Any) -> tuple[Any, list[Any]]:
    """A row of axes at README width, room for a legend outside included."""
    from matplotlib.figure import Figure  # not pyplot, which keeps what is never shown

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, **options)
    for axis in axes[0]:
        axis.grid(alpha=0.25, linewidth=0.6)
    return figure, list(axes[0])


def outside_legend(figure: Any, axes: list[Any], *, below: bool = False) -> None:
    """One legend beside or below the axes, never over data."""
    unique: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        unique = {**dict(zip(labels, handles, strict=True)), **unique}
    place = "outside lower center" if below else "outside right upper"
    columns = 3 if below else 1
    figure.legend(
        unique.values(), unique.keys(), loc=place, ncols=columns, fontsize=8.5, frameon=False
    )


def plain_ticks(axis: Any) -> None:
    """Numbers like 20 and 50 instead of powers of ten on a short logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _families(raw: Raw) -> Iterable[tuple[str, str]]:
    """Kind and method of every family but the variants, baselines first."""
    methods = raw.study.methods()
    for kind in (*BASELINES, "probegate", "adaptive", "static"):
        for method in methods:
            if method == kind or method.startswith(f"{kind}-"):
                yield kind, method


def _p95(cell: Cell) -> float:
    return float(np.quantile(cell.deviation, 0.95)) if len(cell.deviation) else 0.0


def frontier(raw: Raw) -> Made:
    """Evaluations against the 95th percentile of the deviation, one line per family."""
    figure, (axis,) = subplots(1, 5.0)
    for kind, method in _families(raw):
        family = raw.study.family(method, TEST)
        points = [(float(c.evaluations.mean()), _p95(c)) for c in family if _p95(c) > 0]
        _line(axis, kind, sorted(points))
    _paper_points(axis, raw, lambda cell: float(cell.evaluations.mean()), _p95)
    if not axis.has_data():
        return None
    axis.axhline(raw.tolerance, color=INK, linestyle="--", linewidth=1)
    axis.set(
        xscale="log", yscale="log", xlabel=f"mean evaluations of {raw.steps}",
        ylabel="95th percentile of the deviation (normalised RMS per step)",
    )  # fmt: skip
    plain_ticks(axis.xaxis)
    outside_legend(figure, [axis])
    return figure, (
        "Deviation against evaluations on the test calls. Below and left is better. Each line is "
        "a family; one kind tuned for several tolerances has several lines of the same colour. "
        f"Dashed: tolerance {raw.tolerance:g}. Single marks are the paper's method."
    )


def _line(axis: Any, kind: str, points: Points, label: str | None = None) -> None:
    if points:
        colour, marker = STYLES[kind]
        own = kind in ("static", "adaptive")
        axis.plot(
            *zip(*points, strict=True), color=colour, marker=marker, label=label or TITLES[kind],
            markersize=5, linewidth=2.0 if own else 1.1, zorder=3 if own else 2,
        )  # fmt: skip


def _paper_points(
    axis: Any,
    raw: Raw,
    across: Callable[[Cell], float | None],
    up: Callable[[Cell], float | None],
) -> None:
    """The paper's method at its usual settings, every tolerance, as single marks."""
    # The last is the smallest: all three are seen where they do the same.
    for units, size in zip(UNITS, (120, 70, 30), strict=True):
        cells = [raw.paper(tolerance, RISK, units) for tolerance in raw.tolerances]
        points = [(across(cell), up(cell)) for cell in cells if cell is not None]
        known = [(x, y) for x, y in points if x is not None and y is not None and x > 0]
        if known:
            colour, marker = PAPER[units]
            axis.scatter(
                *zip(*known, strict=True), color=colour, marker=marker, s=size, zorder=4,
                edgecolors="white", linewidths=0.6, label=f"paper, {units}",
            )  # fmt: skip


def variants(raw: Raw) -> Made:
    """Static plans with other forecasts: evaluations against the deviation's 95th percentile."""
    methods = [method for method in raw.study.methods() if method.startswith("variant-")]
    figure, (axis,) = subplots(1, 4.4)
    quantities = sorted({method.split("-")[1] for method in methods})
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
    marks = {"0": "o", "1": "s", "2": "^", "3": "D"}
    for method in methods:
        _, quantity, order, look_back = [*method.split("-"), "", "", ""][:4]
        family = raw.study.family(method, TEST)
        points = sorted((float(c.evaluations.mean()), _p95(c)) for c in family if _p95(c) > 0)
        if points:
            axis.plot(
                *zip(*points, strict=True), color=colours[quantities.index(quantity) % 4],
                marker=marks.get(order, "x"), linestyle="-" if look_back == "lookback" else ":",
                label=title_of(method).removeprefix("variant: "), markersize=5, linewidth=1.4,
            )  # fmt: skip
    if not axis.has_data():
        return None
    axis.axhline(raw.tolerance, color=INK, linestyle="--", linewidth=1)
    axis.set(
        xscale="log", yscale="log", xlabel=f"mean evaluations of {raw.steps}",
        ylabel="95th percentile of the deviation\n(normalised RMS per step)",
    )  # fmt: skip
    plain_ticks(axis.xaxis)
    outside_legend(figure, [axis])
    return figure, (
        "Static plans with other forecasts on the test calls: colour is the quantity that is "
        "forecast, marker the order, solid with look-back, dotted without. Dashed: tolerance "
        f"{raw.tolerance:g}."
    )


def time(raw: Raw) -> Made:
    """Median time of a call against violations, collisions and success."""
    if raw.seconds(raw.full()) is None:
        return None

    def milliseconds(cell: Cell) -> float | None:
        seconds = raw.seconds(cell)
        return None if seconds is None else 1e3 * seconds

    figures: dict[str, Callable[[Cell], float | None]] = {
        f"violations at {raw.tolerance:g}": lambda c: float((c.deviation > raw.tolerance).mean()),
        "plans that collide": lambda c: float(c.collided.mean()) if len(c.collided) else None,
        "driven calls that succeed": lambda c: float(c.success.mean()) if len(c.success) else None,
    }
    cells = [c for c in raw.study.cells if c.key.stream == TEST and milliseconds(c) is not None]
    # A figure that is the same for every program says nothing about them.
    varied = {
        name: figure for name, figure in figures.items()
        if len({value for cell in cells if (value := figure(cell)) is not None}) > 1
    }  # fmt: skip
    if not varied:
        return None
    picture, axes = subplots(len(varied), 4.6)
    for axis, (name, figure) in zip(axes, varied.items(), strict=True):
        for kind, method in _families(raw):
            points = [
                (across, up) for cell in raw.study.family(method, TEST)
                if (across := milliseconds(cell)) and (up := figure(cell)) is not None
            ]  # fmt: skip
            _line(axis, kind, sorted(points))
        _paper_points(axis, raw, milliseconds, figure)
        full = raw.full()
        if len(full.deviation) and (up := figure(full)) is not None:
            axis.scatter(
                [milliseconds(full)], [up], color=INK, marker="*", s=120, zorder=5,
                label=TITLES["full"],
            )  # fmt: skip
        axis.set(xscale="log", xlabel="median time of a call, ms", title=name)
        axis.title.set_fontsize(10)
        plain_ticks(axis.xaxis)
    axes[0].set_ylabel("share of test calls")
    outside_legend(picture, axes, below=True)
    hardware = raw.timing.get("hardware", "hardware not recorded")
    return picture, f"Time of a batch-1 call against what it gives; timed on {hardware}."


def promise(raw: Raw) -> Made:
    """Evaluations under the same certificate, by tolerance."""
    figure, (axis,) = subplots(1, 4.6)
    for kind in (*BASELINES, "adaptive", "static"):
        points = []
        for tolerance in raw.tolerances:
            method = f"{kind}-{tolerance:g}" if kind in ("static", "adaptive") else kind
            choice = certified(raw, method, tolerance, RISK)
            if choice.test is not None and len(choice.test.evaluations):
                points.append((tolerance, float(choice.test.evaluations.mean())))
        _line(axis, kind, points, CERTIFIED.get(kind))
    if not axis.has_data():
        return None
    axis.axhline(raw.steps, color=INK, linestyle="--", linewidth=1, label=TITLES["full"])
    axis.set(
        xscale="log", yscale="log", ylabel=f"mean evaluations of {raw.steps}",
        xlabel="tolerance (deviation, normalised RMS per step)",
    )  # fmt: skip
    axis.set_xticks(raw.tolerances, [f"{value:g}" for value in raw.tolerances])
    axis.set_xticks([], minor=True)
    plain_ticks(axis.yaxis)
    outside_legend(figure, [axis])
    return figure, (
        f"Evaluations that each method needs for the same promise: at most {RISK:.0%} of calls "
        f"beyond the tolerance, confidence {raw.confidence:g}. Lower is better; at the dashed "
        "line a method falls back to full compute."
    )


def risk(raw: Raw) -> Made:
    """Realised violations against the promised risk."""
    figure, (axis,) = subplots(1, 4.6)
    looks = [*PAPER.values(), ("#E69F00", "h"), ("#CC79A7", "X")]
    looks += [STYLES["probethresh"], STYLES["fixedskip"], STYLES["static"], STYLES["adaptive"]]
    programs = risk_programs(raw, raw.tolerance)
    for place, (program, (colour, marker)) in enumerate(zip(programs, looks, strict=False)):
        found = [(value, program.choose(value).test) for value in raw.risks]
        known = [(value, c) for value, c in found if c is not None and len(c.deviation)]
        if not known:
            continue
        shares = [proportion(cell.deviation > raw.tolerance) for _, cell in known]
        spread = 1.03 ** (place - len(programs) / 2)  # side by side, so that bars do not overlap
        axis.errorbar(
            [value * spread for value, _ in known], [s.value for s in shares if s],
            yerr=np.array([[s.value - s.low, s.high - s.value] for s in shares if s]).T.clip(0),
            color=colour, marker=marker, markersize=5, capsize=2, linewidth=1.2,
            elinewidth=0.8, label=program.label,
        )  # fmt: skip
    if not axis.has_data():
        return None
    ends = np.array([0.7 * min(raw.risks), 1.4 * max(raw.risks)])
    axis.plot(ends, ends, color=INK, linestyle="--", linewidth=1, label="promised")
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=0.01, linscale=0.5)
    axis.set_xticks(raw.risks, [f"{value:g}" for value in raw.risks])
    axis.set_xticks([], minor=True)
    levels = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    axis.set_yticks(levels, [f"{value:g}" for value in levels])
    axis.set_yticks([], minor=True)
    axis.set(
        xlabel="risk asked for", ylabel="share of test calls beyond the tolerance", xlim=ends,
        ylim=(-0.001, 1.15),
    )  # fmt: skip
    outside_legend(figure, [axis])
    return figure, (
        f"Realised violations of tolerance {raw.tolerance:g} against the risk asked for, with 95% "
        "Wilson intervals. A promise is kept on or below the dashed line. The axis is linear "
        "below 0.01."
    )
