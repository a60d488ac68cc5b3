"""Pictures of the study; each is left out where its data are missing. A docstring is a caption."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from muninn_bench.measure.statistics import Estimate, mean, proportion
from muninn_bench.report import style
from muninn_bench.report.study_page import picture
from muninn_bench.report.style import INK
from muninn_bench.studies.ablation import findings, promises
from muninn_bench.studies.ablation.analysis import probe_correlations
from muninn_bench.studies.ablation.published import risk_programs
from muninn_bench.studies.ablation.raw import TEST, Cell, Raw
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE, UNITS
from muninn_bench.studies.ablation.tables import BASELINES, CERTIFIED, FIGURES, TITLES, title_of

# Okabe and Ito's palette and darker relatives; markers tell the lines apart without colour.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = CYCLE
STYLES = {
    "static": (BLUE, "o"),
    "adaptive": (SKY, "D"),
    "frontier": (INK, "P"),
    "fewsteps": (YELLOW, "v"),
    "dpmsolver": (GREEN, "^"),
    "unipc": ("#0B5D45", "<"),
    "taylor": (PINK, "s"),
    "fixedskip": ("#999999", "x"),
    "probethresh": ("#8C6D1F", "+"),
    "teacache": ("#B8A000", "1"),
    "probegate": ("#332288", "*"),
}
PAPER = {
    "algorithm": (ORANGE, "h", "-"),
    "appendix": ("#F0A070", "d", "--"),
    "mended": ("#5A2400", "X", ":"),
}
OUTCOMES = {
    "violations": f"violations at {TOLERANCE:g}",
    "collisions": "plans that collide",
    "success": "driven calls that succeed",
}
STEP = "sampler step (0 is the noisiest)"
Points = list[tuple[float, float]]
Across = Callable[[Cell], float | None]


def _line(axis: Any, kind: str, points: Points, label: str) -> None:
    if points:
        (colour, marker), own = STYLES[kind], kind in CERTIFIED
        look = {"linewidth": 2.0 if own else 1.1, "zorder": 3 if own else 2, "markersize": 5}
        across, up = zip(*points, strict=True)
        axis.plot(across, up, color=colour, marker=marker, label=label, **look)


def _spent(cell: Cell) -> float:
    return float(cell.evaluations.mean())


def _points(raw: Raw, cells: Iterable[Cell | None], across: Across, up: str) -> Points:
    """A cost and a figure of some cells, where both are known and can be drawn."""
    points = []
    for cell in (cell for cell in cells if cell is not None):
        x, found = across(cell), FIGURES[up](raw, cell, TOLERANCE)
        y: Any = found.value if isinstance(found, Estimate) else found
        if x is not None and y is not None and (y > 0 or up != "p95 deviation"):
            points.append((x, y))  # deviations have a logarithmic axis
    return sorted(points)


def _programs(axis: Any, raw: Raw, across: Across, up: str) -> None:
    """A line for every family but the variants, and marks for the paper at every tolerance."""
    for kind in (*BASELINES, "probegate", *reversed(CERTIFIED)):
        for method in raw.methods:
            if method.partition("-")[0] == kind:
                _line(axis, kind, _points(raw, raw.family(method), across, up), TITLES[kind])
    # The last is the smallest: all three are seen where they do the same.
    for units, size in zip(UNITS, (120, 70, 30), strict=True):
        cells = [raw.paper(tolerance, RISK, units) for tolerance in raw.tolerances]
        points = _points(raw, cells, across, up)
        if points:
            look = {"s": size, "zorder": 4, "edgecolors": "white", "linewidths": 0.6}
            (colour, marker, _), label = PAPER[units], f"paper, {units}"
            axis.scatter(*np.array(points).T, color=colour, marker=marker, label=label, **look)


def _deviation_axes(axis: Any, raw: Raw) -> None:
    axis.axhline(TOLERANCE, color=INK, linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel=f"mean evaluations of {raw.steps}")
    axis.set(yscale="log", ylabel="95th percentile of the deviation\n(normalised RMS per step)")
    style.plain_ticks(axis.xaxis)


@picture("promise", 4.6)
def promise(raw: Raw, axis: Any, _: None) -> None:
    """Evaluations that each method needs for the same promise: at most {risk:.0%} of calls beyond
    the tolerance, confidence {confidence:g}. Lower is better; at the dashed line a method falls
    back to full compute.
    """
    rows: Any = promises.promise(raw).rows
    for kind in (*BASELINES, *reversed(CERTIFIED)):
        name = title_of(kind, tuned=False)
        own = [row for row in rows if row["program"] == name and row["member"] is not None]
        _line(axis, kind, [(row["tolerance"], row["evaluations"].value) for row in own], name)
    axis.axhline(raw.steps, color=INK, linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel="tolerance (deviation, normalised RMS per step)")
    axis.set(yscale="log", ylabel=f"mean evaluations of {raw.steps}")
    style.ticks(axis.xaxis, raw.tolerances)
    style.plain_ticks(axis.yaxis)


@picture("ii_risk_0.05", 4.6)
def risk(raw: Raw, axis: Any, _: None) -> None:
    """Realised violations of tolerance {tolerance:g} against the risk asked for, with 95% Wilson
    intervals. A promise is kept on or below the dashed line. The axis is linear below 0.01.
    """
    looks = [*(look[:2] for look in PAPER.values()), (YELLOW, "h"), (PINK, "X")]
    looks += [STYLES[kind] for kind in ("probethresh", "fixedskip", *CERTIFIED)]
    programs = risk_programs(raw, TOLERANCE).items()
    for place, ((name, choose), (colour, marker)) in enumerate(zip(programs, looks, strict=False)):
        cells = [choose(value).test for value in raw.risks]
        shares = [proportion(cell.deviation > TOLERANCE) if cell else None for cell in cells]
        spread = 1.03 ** (place - len(programs) / 2)  # side by side, so that bars do not overlap
        at = [value * spread for value in raw.risks]
        style.bars(axis, at, shares, color=colour, marker=marker, linewidth=1.2, label=name)
    ends = (0.7 * min(raw.risks), 1.4 * max(raw.risks))
    axis.plot(ends, ends, color=INK, linestyle="--", linewidth=1)
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=0.01, linscale=0.5)
    style.ticks(axis.xaxis, raw.risks)
    style.ticks(axis.yaxis, (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1))
    axis.set(xlabel="risk asked for", xlim=ends)
    axis.set(ylabel="share of test calls beyond the tolerance", ylim=(-0.001, 1.15))


@picture("iv_probes", 3.8)
def probes(raw: Raw, axis: Any, _: None) -> None:
    """Rank correlation of a probe's score with the reuse error across calls, within each step
    (lines) and pooled over steps (dotted, same colours).
    """
    for (depth, score, pairs), colour in zip(raw.ghosts(), CYCLE, strict=False):
        pooled, within = probe_correlations(pairs)
        axis.plot(pairs.eligible, within, color=colour, linewidth=1.5, label=f"{depth}, {score}")
        axis.axhline(pooled, color=colour, linewidth=1, linestyle=":")
    axis.axhline(0.0, color=INK, linewidth=0.8)
    axis.set(xlabel=STEP, xlim=(0, raw.steps - 1))
    axis.set(ylabel="rank correlation, score and error", ylim=(-1.02, 1.02))


@picture("vii_ours", 4.4)
def variants(raw: Raw, axis: Any, _: None) -> None:
    """Static plans with other forecasts on the test calls: colour is the quantity that is forecast,
    marker the order, solid with look-back, dotted without. Dashed: tolerance {tolerance:g}.
    """
    methods = [method for method in raw.methods if method.startswith("variant-")]
    quantities = sorted({method.split("-")[1] for method in methods})
    for method in methods:
        quantity, order, look_back = method.split("-")[1:]
        look = {
            "color": CYCLE[quantities.index(quantity) % 4],
            "marker": "os^D"[int(order) % 4],
            "linestyle": "-" if look_back == "lookback" else ":",
            "label": f"{quantity}, {order}, {look_back}",
        }
        points = _points(raw, raw.family(method), _spent, "p95 deviation")
        axis.plot(*np.array(points).T, markersize=5, linewidth=1.4, **look)
    _deviation_axes(axis, raw)


def _varied(raw: Raw) -> list[str]:
    """Outcomes of timed programs; one that is the same for all says nothing about them."""
    tested = [cell for cell in raw.cells if cell.key.stream == TEST]
    found = {name: _points(raw, tested, raw.milliseconds, name) for name in OUTCOMES}
    return [name for name, points in found.items() if len({y for _, y in points}) > 1]


@picture("quarter", 4.6, _varied)
def time(raw: Raw, axis: Any, name: str) -> None:
    """Time of a batch-1 call against what it gives; timed on {hardware}."""
    _programs(axis, raw, raw.milliseconds, name)
    for point in _points(raw, [raw.full], raw.milliseconds, name):
        axis.scatter(*point, color=INK, marker="*", s=120, zorder=5, label=TITLES["full"])
    axis.set(xscale="log", xlabel="median time of a call, ms", ylabel="share of test calls")
    axis.set_title(OUTCOMES[name], fontsize=10)
    style.plain_ticks(axis.xaxis)


@picture("kf3_bins", 4.4, lambda raw: ("clearance", "success"))
def difficulty(raw: Raw, axis: Any, panel: str) -> None:
    """Left: evaluations of test calls in fifths by the full plan's distance to walls. Right:
    success of driven calls grouped by the evaluations they took. 95% intervals.
    """
    programs = findings.adaptive_programs(raw).items()
    for (name, cell), colour, mark in zip(programs, CYCLE, "osD^vP", strict=False):
        spent, near = cell.evaluations, findings.near_walls(raw, cell)
        look = {"color": colour, "marker": mark, "linewidth": 1.4, "label": name}
        if panel == "success":
            driven = [calls[calls < len(cell.success)] for calls in findings.groups(spent)]
            driven = [calls for calls in driven if len(calls)]
            at = [float(spent[calls].mean()) for calls in driven]
            style.bars(axis, at, [proportion(cell.success[calls]) for calls in driven], **look)
        elif near is not None:
            fifths = findings.groups(near)
            at = [float(np.median(near[calls])) for calls in fifths]
            style.bars(axis, at, [mean(spent[calls]) for calls in fifths], **look)
    if panel == "success":
        axis.set(xlabel="evaluations (mean of a group of calls)", ylabel="success of driven calls")
    else:
        axis.set(xlabel="clearance of the full plan, m (median of a fifth)")
        axis.set(ylabel="mean evaluations")


def _predictions(raw: Raw) -> list[tuple[findings.Reliability, tuple[float, float]]]:
    """Predictions at the headline's tolerance, and the ends of axes on which all can be seen."""
    shown = [own for own in findings.reliabilities(raw) if own.tolerance == TOLERANCE]
    shown = [own for own in shown if ((own.cell.deviation > 0) & (own.predicted > 0)).any()]
    parts = [part for own in shown for part in (own.predicted, own.cell.deviation)]
    seen = np.concatenate([[TOLERANCE], *parts])
    ends = (0.6 * np.quantile(seen[seen > 0], 0.002), 1.7 * seen.max())
    return [(own, ends) for own in shown]


@picture("kf4", 3.2, _predictions)
def reliability(
    raw: Raw, axis: Any, panel: tuple[findings.Reliability, tuple[float, float]]
) -> None:
    """Predicted against realised deviation of test calls at tolerance {tolerance:g} (dotted). Calls
    on or below the diagonal are covered; {kept:.0%} are intended. Calls with nothing predicted or
    no deviation lie outside the logarithmic axes.
    """
    own, ends = panel
    realised, colour = own.cell.deviation, PAPER[own.units][0] if own.units else BLUE
    axis.scatter(own.predicted, realised, s=9, color=colour, alpha=0.35, linewidths=0)
    axis.plot(ends, ends, color=INK, linewidth=1)
    axis.axhline(TOLERANCE, color=INK, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlim=ends, xlabel="predicted deviation")
    axis.set(yscale="log", ylim=ends, ylabel="realised deviation")
    covered = float((realised <= own.predicted).mean())
    axis.set_title(f"{own.name}\n{covered:.1%} covered", fontsize=10)


def _charging(raw: Raw) -> list[list[findings.Reliability]]:
    """Predictions by tolerance where ours is known, or at the headline's."""
    found = [own for own in findings.reliabilities(raw) if len(own.charged()) == raw.steps]
    shown = sorted({own.tolerance for own in found if not own.units}) or [TOLERANCE]
    panels = [[own for own in found if own.tolerance == tolerance] for tolerance in shown]
    return [own for own in panels if own]


@picture("kf4_charged", 3.8, _charging)
def charged(raw: Raw, axis: Any, panel: list[findings.Reliability]) -> None:
    """Steps to which the predicted deviation is charged, over all test calls."""
    for own in panel:
        colour, _, dashes = PAPER.get(own.units, (BLUE, "", "-"))
        look = {"color": colour, "linestyle": dashes, "label": own.name}
        axis.step(range(raw.steps), own.charged(), where="mid", **look)
    axis.set(xlabel=STEP, xlim=(-0.5, raw.steps - 0.5))
    axis.set(ylabel="share of the estimate", ylim=(0, None))
    axis.set_title(f"tolerance {panel[0].tolerance:g}", fontsize=10)


@picture("frontier", 5.0)
def frontier(raw: Raw, axis: Any, _: None) -> None:
    """Deviation against evaluations on the test calls. Below and left is better. Each line is a
    family; one kind tuned for several tolerances has several lines of the same colour. Dashed:
    tolerance {tolerance:g}. Single marks are the paper's method.
    """
    _programs(axis, raw, _spent, "p95 deviation")
    _deviation_axes(axis, raw)


PICTURES = (
    promise, risk, probes, variants, time, difficulty, reliability, charged, frontier,
)  # fmt: skip
