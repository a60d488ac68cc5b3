"""Pictures of the study; each is left out where its data are missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from muninn_bench.measure.statistics import Estimate, mean, proportion
from muninn_bench.report import style
from muninn_bench.report.study_page import picture
from muninn_bench.report.style import BLUE, CYCLE, INK, ORANGE, PINK, YELLOW
from muninn_bench.studies.ablation import findings, tables
from muninn_bench.studies.ablation.choices import BASELINES, CERTIFIED, FIGURES, METHODS, title_of
from muninn_bench.studies.ablation.findings import Reliability
from muninn_bench.studies.ablation.raw import TEST, Cell, Raw
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE, UNITS

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


def _line(axis: Any, kind: str, points: Points, label: str) -> None:
    if points:
        (_, colour, marker), own = METHODS[kind], kind in CERTIFIED
        look = {"linewidth": 2.0 if own else 1.1, "zorder": 3 if own else 2, "markersize": 5}
        axis.plot(*np.transpose(points), color=colour, marker=marker, label=label, **look)


def _points(raw: Raw, cells: Iterable[Cell | None], up: str) -> Points:
    """A figure of some cells over the evaluations, an outcome over time; where both are known."""
    points = []
    for cell in (cell for cell in cells if cell is not None):
        found = FIGURES[up](raw, cell, TOLERANCE)
        x = cell.milliseconds if up in OUTCOMES else float(cell.evaluations.mean())
        y: Any = found.value if isinstance(found, Estimate) else found
        if x is not None and y is not None and (y > 0 or up in OUTCOMES):
            points.append((x, y))  # deviations have a logarithmic axis
    return sorted(points)


def _programs(axis: Any, raw: Raw, up: str) -> None:
    """A line for every family but the variants, and marks for the paper at every tolerance."""
    for kind in (*BASELINES, "probegate", *reversed(CERTIFIED)):
        for method in raw.methods:
            if method.partition("-")[0] == kind:
                _line(axis, kind, _points(raw, raw.family(method), up), METHODS[kind][0])
    # The last is the smallest: all three are seen where they do the same.
    for units, size in zip(UNITS, (120, 70, 30), strict=True):
        cells = [raw.paper(tolerance, RISK, units) for tolerance in raw.tolerances]
        if points := _points(raw, cells, up):
            look = {"s": size, "zorder": 4, "edgecolors": "white", "linewidths": 0.6}
            (colour, marker, _), label = PAPER[units], f"paper, {units}"
            axis.scatter(*np.transpose(points), color=colour, marker=marker, label=label, **look)


def _deviation_axes(axis: Any, raw: Raw) -> None:
    axis.axhline(TOLERANCE, color=INK, linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel=f"mean evaluations of {raw.steps}")
    axis.set(yscale="log", ylabel="95th percentile of the deviation\n(normalised RMS per step)")
    style.plain_ticks(axis.xaxis)


@picture(4.6)
def promise(raw: Raw, axis: Any, _: None) -> None:
    """Evaluations that each method needs for the same promise."""
    rows: Any = [row for row in tables.promise(raw) if isinstance(row, dict)]
    for kind in (*BASELINES, *reversed(CERTIFIED)):
        name = title_of(kind, tuned=False)
        own = [row for row in rows if row["program"] == name and row["member"] is not None]
        _line(axis, kind, [(row["tolerance"], row["evaluations"].value) for row in own], name)
    axis.axhline(raw.steps, color=INK, linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel="tolerance (deviation, normalised RMS per step)")
    axis.set(yscale="log", ylabel=f"mean evaluations of {raw.steps}")
    style.ticks(axis.xaxis, raw.tolerances)
    style.plain_ticks(axis.yaxis)


@picture(4.6)
def risk(raw: Raw, axis: Any, _: None) -> None:
    """Realised violations against the risk asked for."""
    looks = [*(look[:2] for look in PAPER.values()), (YELLOW, "h"), (PINK, "X")]
    looks += [METHODS[kind][1:] for kind in ("probethresh", "fixedskip", *CERTIFIED)]
    programs = tables.risk_programs(raw, TOLERANCE).items()
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


@picture(3.8)
def probes(raw: Raw, axis: Any, _: None) -> None:
    """Rank correlation of a probe's score with the reuse error."""
    for (depth, score, pairs), colour in zip(raw.ghosts(), CYCLE, strict=False):
        pooled, within = tables.probe_correlations(pairs)
        axis.plot(pairs.eligible, within, color=colour, linewidth=1.5, label=f"{depth}, {score}")
        axis.axhline(pooled, color=colour, linewidth=1, linestyle=":")
    axis.axhline(0.0, color=INK, linewidth=0.8)
    axis.set(xlabel=STEP, xlim=(0, raw.steps - 1))
    axis.set(ylabel="rank correlation, score and error", ylim=(-1.02, 1.02))


@picture(4.4)
def variants(raw: Raw, axis: Any, _: None) -> None:
    """Static plans with other forecasts: deviation against evaluations."""
    named = [method.split("-") for method in raw.methods if method.startswith("variant-")]
    quantities = sorted({quantity for _, quantity, *_ in named})
    for kind, quantity, order, look_back in named:
        look = {
            "color": CYCLE[quantities.index(quantity) % 4],
            "marker": "os^D"[int(order) % 4],
            "linestyle": "-" if look_back == "lookback" else ":",
            "label": f"{quantity}, {order}, {look_back}",
        }
        family = raw.family(f"{kind}-{quantity}-{order}-{look_back}")
        points = _points(raw, family, "p95 deviation")
        axis.plot(*np.transpose(points), markersize=5, linewidth=1.4, **look)
    _deviation_axes(axis, raw)


def _varied(raw: Raw) -> list[str]:
    """Outcomes of timed programs; one that is the same for all says nothing about them."""
    tested = [cell for cell in raw.cells if cell.stream == TEST]
    found = {name: _points(raw, tested, name) for name in OUTCOMES}
    return [name for name, points in found.items() if len({y for _, y in points}) > 1]


@picture(4.6, _varied)
def time(raw: Raw, axis: Any, name: str) -> None:
    """Time of a batch-1 call against what it gives."""
    _programs(axis, raw, name)
    for point in _points(raw, [raw.full], name):
        label, colour, marker = METHODS["full"]
        axis.scatter(*point, color=colour, marker=marker, s=120, zorder=5, label=label)
    axis.set(xscale="log", xlabel="median time of a call, ms", ylabel="share of test calls")
    axis.set_title(OUTCOMES[name], fontsize=10)
    style.plain_ticks(axis.xaxis)


@picture(4.4, lambda raw: ("clearance", "success"))
def difficulty(raw: Raw, axis: Any, panel: str) -> None:
    """Evaluations by distance to walls; success by evaluations."""
    programs = findings.adaptive_programs(raw).items()
    for (name, cell), colour, mark in zip(programs, CYCLE, "osD^vP", strict=False):
        spent, near = cell.evaluations, findings.near_walls(raw, cell)
        look = {"color": colour, "marker": mark, "linewidth": 1.4, "label": name}
        if panel == "success":
            driven = [calls[calls < len(cell.success)] for calls in findings.groups(spent)]
            driven = [calls for calls in driven if len(calls)]
            at = [float(spent[calls].mean()) for calls in driven]
            style.bars(axis, at, [proportion(cell.success[calls]) for calls in driven], **look)
            axis.set(xlabel="evaluations (mean of a group of calls)")
            axis.set(ylabel="success of driven calls")
        else:
            fifths = findings.groups(near)
            at = [float(np.median(near[calls])) for calls in fifths]
            style.bars(axis, at, [mean(spent[calls]) for calls in fifths], **look)
            axis.set(xlabel="clearance of the full plan, m (median of a fifth)")
            axis.set(ylabel="mean evaluations")


def _predictions(raw: Raw) -> list[Reliability]:
    """Predictions at the headline's tolerance that logarithmic axes can show."""
    shown = [own for own in findings.reliabilities(raw) if own.tolerance == TOLERANCE]
    return [own for own in shown if ((own.cell.deviation > 0) & (own.predicted > 0)).any()]


@picture(3.2, _predictions)
def reliability(raw: Raw, axis: Any, own: Reliability) -> None:
    """Predicted against realised deviation."""
    parts = [part for one in _predictions(raw) for part in (one.predicted, one.cell.deviation)]
    seen = np.concatenate([[TOLERANCE], *parts])  # the same axes for all panels
    ends = (0.6 * np.quantile(seen[seen > 0], 0.002), 1.7 * seen.max())
    realised, colour = own.cell.deviation, PAPER[own.units][0] if own.units else BLUE
    axis.scatter(own.predicted, realised, s=9, color=colour, alpha=0.35, linewidths=0)
    axis.plot(ends, ends, color=INK, linewidth=1)
    axis.axhline(TOLERANCE, color=INK, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlim=ends, xlabel="predicted deviation")
    axis.set(yscale="log", ylim=ends, ylabel="realised deviation")
    covered = float((realised <= own.predicted).mean())
    axis.set_title(f"{own.name}\n{covered:.1%} covered", fontsize=10)


def _charging(raw: Raw) -> list[list[Reliability]]:
    """Predictions by tolerance where ours is known, or at the headline's."""
    found = [own for own in findings.reliabilities(raw) if len(own.charged) == raw.steps]
    shown = sorted({own.tolerance for own in found if not own.units}) or [TOLERANCE]
    panels = [[own for own in found if own.tolerance == tolerance] for tolerance in shown]
    return [own for own in panels if own]


@picture(3.8, _charging)
def charged(raw: Raw, axis: Any, panel: list[Reliability]) -> None:
    """Steps to which the predicted deviation is charged."""
    for own in panel:
        colour, _, dashes = PAPER.get(own.units, (BLUE, "", "-"))
        look = {"color": colour, "linestyle": dashes, "label": own.name}
        axis.step(range(raw.steps), own.charged, where="mid", **look)
    axis.set(xlabel=STEP, xlim=(-0.5, raw.steps - 0.5))
    axis.set(ylabel="share of the estimate", ylim=(0, None))
    axis.set_title(f"tolerance {panel[0].tolerance:g}", fontsize=10)


@picture(5.0)
def frontier(raw: Raw, axis: Any, _: None) -> None:
    """Deviation against evaluations, all programs."""
    _programs(axis, raw, "p95 deviation")
    _deviation_axes(axis, raw)


PICTURES = (
    promise, risk, probes, variants, time, difficulty, reliability, charged, frontier,
)  # fmt: skip
