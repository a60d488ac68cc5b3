"""Key findings of the paper, measured: what programs give for their cost (1), whether compute
follows difficulty (3), and whether Dhat covers (4).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import mean, proportion, spearman
from muninn_bench.report.table import Row
from muninn_bench.studies.ablation import choices
from muninn_bench.studies.ablation.choices import certified, figures, title_of
from muninn_bench.studies.ablation.raw import Cell, Raw
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE, UNITS

Indices = npt.NDArray[np.intp]


def frontier(raw: Raw) -> Iterator[Row]:
    """Every member of every method."""
    for cell in (cell for method in raw.methods for cell in raw.family(method)):
        yield {
            "method": title_of(cell.method),
            "order": cell.order,
            "settings": raw.own_settings(cell),
            "evaluations": float(cell.evaluations.mean()),
            **figures(raw, cell, TOLERANCE, ("reuse", "median ms", "speed-up")),
            "mean deviation": float(cell.deviation.mean()),
            **figures(raw, cell, TOLERANCE, ("p95 deviation",)),
            **{f"violations at {t:g}": float((cell.deviation > t).mean()) for t in raw.tolerances},
            **figures(raw, cell, TOLERANCE, ("collisions", "success")),
        }


def quarter(raw: Raw) -> Iterator[Row | str]:
    """The closest member of each method within a quarter of full compute's time."""
    names = [
        name
        for name in choices.FIGURES
        if name not in ("evaluations / T", "reuse", "p95 deviation")
    ]
    late = []
    for method in sorted(raw.methods, key=lambda method: method != "full"):
        least = 1.0 if method == "full" else 4.0
        times = [(cell, raw.speed_up(cell)) for cell in raw.family(method)]
        within = [cell for cell, own in times if own is not None and own >= least]
        if within:
            best = min(within, key=lambda cell: float(cell.deviation.mean()))
            about = {"method": title_of(method), "settings": raw.own_settings(best) or None}
            yield {**about, **figures(raw, best, TOLERANCE, names)}
        elif any(own for _, own in times):
            late.append(title_of(method))
    if late:
        yield f"No timed member within a quarter: {', '.join(late)}."


def overhead(raw: Raw) -> Iterator[Row | str]:
    """Time of a call as the paper models it, against the measured one."""
    cost, errors = raw.timing, []
    for cell in raw.family("paper") if cost else []:
        depth, measured = cell.settings["depth"], cell.milliseconds
        if measured is None or depth not in cost["core_ms"]:
            continue
        evaluations = float(cell.evaluations[: len(cell.seconds)].mean())
        plain = raw.steps * cost["stem_ms"][depth] + evaluations * cost["core_ms"][depth]
        whole = plain + raw.steps * (cost["step_ms"] + cost["bookkeeping_ms"])
        errors.append((plain / measured - 1.0, whole / measured - 1.0))
        yield {
            "settings": raw.own_settings(cell),
            "evaluations": evaluations,
            "measured ms": measured,
            "T probe + n core, ms": plain,
            "error": errors[-1][0],
            "with sampler, ms": whole,
            "error with sampler": errors[-1][1],
        }
    if errors:
        middle = np.median(np.abs(errors), axis=0)
        yield "Median absolute error: {:.1%}, with the sampler {:.1%}.".format(*middle)


def overhead_probe(raw: Raw) -> Iterator[Row]:
    """Times of the probes and of the network."""
    for depth, stem in raw.timing.get("stem_ms", {}).items():
        yield {
            "network": raw.timing["network"],
            "probe": depth,
            "full ms": raw.timing["full_ms"],
            "probe ms": stem,
            "core ms": raw.timing["core_ms"][depth],
            "share": raw.probe_share(depth),
        }


def adaptive_programs(raw: Raw) -> dict[str, Cell]:
    """Test cells of programs that may spend more on some calls, by name.

    The paper's at the tolerance nearest to the headline's at which it does, if there is one.
    """
    programs = {}
    near = sorted(raw.tolerances, key=lambda value: abs(np.log(value / TOLERANCE)))
    for units in ("algorithm", "mended"):
        cells = [raw.paper(value, RISK, units) for value in near]
        known = [cell for cell in cells if cell is not None]
        varying = [cell for cell in known if np.ptp(cell.evaluations) > 0]
        for cell in (varying or known)[:1]:
            programs[f"paper, {units}, tolerance {cell.settings['tolerance']:g}"] = cell
    for tolerance in raw.tolerances_of("adaptive"):
        choice = certified(raw, f"adaptive-{tolerance:g}", tolerance, RISK)
        if choice.test is not None and choice.place >= 0:
            programs[f"certified adaptive, tolerance {tolerance:g}"] = choice.test
    return programs


def groups(values: FloatArray, count: int = 5) -> list[Indices]:
    """Indices of calls in up to ``count`` groups of similar size; equal values stay together."""
    inner = np.linspace(0, 1, count + 1)[1:-1]
    edges = np.unique(np.quantile(values, inner)) if len(values) else values
    place = np.searchsorted(edges, values, side="left")
    return [np.flatnonzero(place == group) for group in np.unique(place)]


def near_walls(raw: Raw, cell: Cell) -> FloatArray:
    """Clearance of the full plans of a cell's calls; of none if not measured for all of them."""
    near = np.zeros(0) if raw.full is None else raw.full.clearance.astype(np.float64)
    return near[: len(cell.evaluations) if len(near) >= len(cell.evaluations) else 0]


def kf3_correlation(raw: Raw) -> Iterator[Row]:
    """Rank correlation of the evaluations with three kinds of difficulty."""
    for name, cell in adaptive_programs(raw).items():
        spent, near = cell.evaluations, near_walls(raw, cell)
        row: Row = {
            "program": name,
            "mean evaluations": float(spent.mean()),
            "s.d.": float(spent.std()),
            "fewest": float(spent.min()),
            "most": float(spent.max()),
        }
        others = {"clearance": near, "deviation": cell.deviation, "collisions": cell.collided}
        for what, other in others.items():
            pair = spearman(spent[: len(other)], other.astype(np.float64))
            row[f"with {what}"], row[f"p ({what})"] = pair
        yield row


def kf3_clearance(raw: Raw) -> Iterator[Row]:
    """Test calls in fifths by the full plan's distance to walls."""
    for name, cell in adaptive_programs(raw).items():
        near = near_walls(raw, cell)
        for calls in groups(near):
            ends = {"clearance from, m": near[calls].min(), "to, m": near[calls].max()}
            yield {"program": name, **ends, **_group(cell, calls)}


def kf3_bins(raw: Raw) -> Iterator[Row]:
    """Test calls in up to five groups by the evaluations they took."""
    for name, cell in adaptive_programs(raw).items():
        spent = cell.evaluations.astype(np.float64)
        for calls in groups(spent):
            ends = {"evaluations from": spent[calls].min(), "to": spent[calls].max()}
            share = len(calls) / len(spent)
            yield {"program": name, **ends, "share of calls": share, **_group(cell, calls)}


def _group(cell: Cell, calls: Indices) -> Row:
    driven = calls[calls < len(cell.success)]
    return {
        "calls": len(calls),
        "mean evaluations": mean(cell.evaluations[calls]),
        "collisions": proportion(cell.collided[calls]),
        "driven": len(driven),
        "success": proportion(cell.success[driven]),
    }


class Reliability(NamedTuple):
    """What one program predicted of the deviation of its test calls, (calls,).

    The program is the paper's with some ``units``, or ours, whose units are empty.
    """

    units: str
    tolerance: float
    predicted: FloatArray
    cell: Cell

    @property
    def name(self) -> str:
        """Of the prediction."""
        return f"paper, {self.units}" if self.units else "certified bound"

    @property
    def charged(self) -> FloatArray:
        """Share of the prediction charged to each step, (steps,); empty if unknown."""
        total = float(self.cell.charged.sum())
        return self.cell.charged / total if total > 0 else np.zeros(0)


@cache
def reliabilities(raw: Raw) -> list[Reliability]:
    """The paper's ``Dhat`` and the certified per-call bound, at every tolerance."""
    found = []
    for tolerance in raw.tolerances:
        cells = {units: raw.paper(tolerance, RISK, units) for units in UNITS}
        found += [Reliability(u, tolerance, own.estimate, own) for u, own in cells.items() if own]
        choice = certified(raw, f"adaptive-{tolerance:g}", tolerance, RISK)
        bound = choices.call_bound(choice.calibrate, RISK) if choice.calibrate else None
        if choice.test is not None and bound is not None:
            found.append(Reliability("", tolerance, bound(choice.test.estimate), choice.test))
    return found


def kf4(raw: Raw) -> Iterator[Row]:
    """Share of test calls whose deviation is at most what was predicted."""
    for own in reliabilities(raw):
        predicted, realised = own.predicted, own.cell.deviation
        ratios = predicted[realised > 0] / realised[realised > 0]
        yield {
            "tolerance": own.tolerance,
            "prediction": own.name,
            "covered": proportion(realised <= predicted),
            "intended": 1.0 - RISK,
            "median predicted": float(np.median(predicted)),
            "median realised": float(np.median(realised)),
            "median predicted / realised": float(np.median(ratios)) if len(ratios) else None,
            "rank correlation": spearman(predicted, realised)[0],
        }


def kf4_charged(raw: Raw) -> Iterator[Row]:
    """Share of the predictions that each step accounts for."""
    found = {f"{own.name}, {own.tolerance:g}": own.charged for own in reliabilities(raw)}
    known = {name: charged for name, charged in found.items() if len(charged) == raw.steps}
    for step in range(raw.steps if known else 0):
        yield {"step": step, **{name: float(charged[step]) for name, charged in known.items()}}


TABLES = (
    quarter, kf3_correlation, kf3_clearance, kf3_bins, kf4, kf4_charged, overhead, overhead_probe,
    frontier,
)  # fmt: skip
