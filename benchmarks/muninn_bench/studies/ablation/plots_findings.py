"""What probes and predictions know: per step, per call, by difficulty. Makers as in plots_programs.

A maker returns None where the folder holds nothing to draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from muninn_bench.studies.ablation.analysis import probe_correlations
from muninn_bench.studies.ablation.folder import RISK, Raw
from muninn_bench.studies.ablation.plots_programs import INK, PAPER, Made, outside_legend, subplots
from muninn_bench.studies.ablation.tables import Estimate, mean, proportion
from muninn_bench.studies.ablation.tables_findings import adaptive_programs, groups, reliabilities

_CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A2400", "#999999"]
_MARKS = "osD^vPX*"
_MOST_PANELS = 4
_CHARGED = {
    units: (PAPER[units][0], style)
    for units, style in (("algorithm", "-"), ("appendix", "--"), ("mended", ":"))
}


def probes(raw: Raw) -> Made:
    """Rank correlation of score and error at every step, one line per probe."""
    figure, (axis,) = subplots(1, 3.8)
    usual = (raw.published["prefix"], raw.published["suffix"])
    ghosts = list(raw.ghosts())
    ghosts = [own for own in ghosts if (own.prefix, own.suffix) == usual] or ghosts
    for ghost, colour in zip(ghosts, _CYCLE, strict=False):
        scores, errors, eligible = ghost.pairs()
        pooled, within = probe_correlations(scores, errors)
        label = f"{ghost.depth}, {ghost.score}"
        axis.plot(eligible, within, color=colour, linewidth=1.5, label=label)
        axis.axhline(pooled, color=colour, linewidth=1, linestyle=":")
    if not axis.has_data():
        return None
    axis.axhline(0.0, color=INK, linewidth=0.8)
    axis.set(
        xlabel="sampler step (0 is the noisiest)", ylabel="rank correlation, score and error",
        ylim=(-1.02, 1.02), xlim=(0, raw.steps - 1),
    )  # fmt: skip
    outside_legend(figure, [axis])
    return figure, (
        "Rank correlation of a probe's score with the reuse error across calls, within each step "
        "(lines) and pooled over steps (dotted, same colours)."
    )


def difficulty(raw: Raw) -> Made:
    """Evaluations by clearance, and success by evaluations."""
    programs = adaptive_programs(raw)
    if not programs or (raw.clearance is None and not any(len(c.success) for *_, c in programs)):
        return None
    figure, (left, right) = subplots(2, 4.4)
    for (name, _, cell), colour, mark in zip(programs, _CYCLE, _MARKS, strict=False):
        style = {
            "color": colour, "marker": mark, "markersize": 5, "capsize": 2, "linewidth": 1.4,
            "elinewidth": 0.8, "label": name,
        }  # fmt: skip
        spent, near = cell.evaluations, raw.clearance
        if near is not None and len(near) >= len(spent):
            near = near[: len(spent)]
            fifths = groups(near)
            at = [float(np.median(near[own])) for own in fifths]
            _bars(left, at, [mean(spent[own]) for own in fifths], style)
        bins = [own[own < len(cell.success)] for own in groups(spent)]
        bins = [own for own in bins if len(own)]
        at = [float(spent[own].mean()) for own in bins]
        _bars(right, at, [proportion(cell.success[own]) for own in bins], style)
    left.set(xlabel="clearance of the full plan, m (median of a fifth)", ylabel="mean evaluations")
    right.set(xlabel="evaluations (mean of a group of calls)", ylabel="success of driven calls")
    for axis in (left, right):
        if not axis.has_data():
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
    outside_legend(figure, [left, right], below=True)
    return figure, (
        "Left: evaluations of test calls in fifths by the full plan's distance to walls. Right: "
        "success of driven calls grouped by the evaluations they took. 95% intervals."
    )


def _bars(
    axis: Any, at: list[float], estimates: list[Estimate | None], style: dict[str, Any]
) -> None:
    known = [(x, own) for x, own in zip(at, estimates, strict=True) if own is not None]
    if known:
        spread = np.array([[own.value - own.low, own.high - own.value] for _, own in known]).T
        places, values = [x for x, _ in known], [own.value for _, own in known]
        axis.errorbar(places, values, yerr=spread.clip(0), **style)


def reliability(raw: Raw) -> Made:
    """Predicted against realised deviation, one panel per prediction at one tolerance."""
    found = list(reliabilities(raw))
    bounds = [own for own in found if own.kind == "certified"]
    at = raw.tolerance
    if bounds and all(own.tolerance != at for own in bounds):
        at = min((own.tolerance for own in bounds), key=lambda value: abs(np.log(value / at)))
    shown = [own for own in found if own.tolerance == at][:_MOST_PANELS]
    shown = [own for own in shown if ((own.realised > 0) & (own.predicted > 0)).any()]
    if not shown:
        return None
    figure, axes = subplots(len(shown), 3.2, sharey=True, sharex=True)
    positive = np.concatenate([np.concatenate([o.predicted, o.realised]) for o in shown])
    positive = positive[positive > 0]
    ends = [0.6 * float(np.quantile(positive, 0.002)), 1.7 * float(positive.max())]
    for axis, own in zip(axes, shown, strict=True):
        units = own.name.removeprefix("paper, ")
        colour = PAPER[units][0] if units in PAPER else "#0072B2"
        axis.scatter(own.predicted, own.realised, s=9, color=colour, alpha=0.35, linewidths=0)
        axis.plot(ends, ends, color=INK, linewidth=1)
        axis.axhline(at, color=INK, linewidth=0.8, linestyle=":")
        covered = float((own.realised <= own.predicted).mean())
        axis.set(
            xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted deviation",
            title=f"{own.name}\n{covered:.1%} covered",
        )  # fmt: skip
        axis.title.set_fontsize(10)
    axes[0].set_ylabel("realised deviation")
    return figure, (
        f"Predicted against realised deviation of test calls at tolerance {at:g} (dotted). Calls "
        f"on or below the diagonal are covered; {1 - RISK:.0%} are intended. Calls with nothing "
        "predicted or no deviation lie outside the logarithmic axes."
    )


def charged(raw: Raw) -> Made:
    """Share of the predicted deviation charged to each step, one panel per tolerance."""
    own = [one for one in reliabilities(raw) if len(one.charged) == raw.steps]
    bounds = {one.tolerance for one in own if one.kind == "certified"}
    shown = sorted(bounds or {one.tolerance for one in own if one.tolerance == raw.tolerance})
    if not shown:
        return None
    figure, axes = subplots(len(shown[:_MOST_PANELS]), 3.8)
    for axis, tolerance in zip(axes, shown, strict=False):
        for one in own:
            if one.tolerance == tolerance:
                units = one.name.removeprefix("paper, ")
                colour, style = _CHARGED.get(units, ("#0072B2", "-"))
                steps = range(raw.steps)
                axis.step(
                    steps, one.charged, where="mid", color=colour, ls=style, label=one.name
                )  # fmt: skip
        axis.set(
            xlabel="sampler step (0 is the noisiest)", xlim=(-0.5, raw.steps - 0.5),
            ylim=(0, None), title=f"tolerance {tolerance:g}",
        )  # fmt: skip
        axis.title.set_fontsize(10)
    axes[0].set_ylabel("share of the estimate")
    outside_legend(figure, axes, below=True)
    return figure, "Steps to which the predicted deviation is charged, over all test calls."
