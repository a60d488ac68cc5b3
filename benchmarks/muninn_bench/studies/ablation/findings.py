"""Key findings of the paper, measured: what programs give for their cost (1), whether compute
follows difficulty (3), and whether Dhat covers (4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import mean, proportion, spearman
from muninn_bench.report.study_page import table
from muninn_bench.report.table import Row
from muninn_bench.studies.ablation.analysis import call_bound, certified
from muninn_bench.studies.ablation.raw import Cell, Raw, settings_text
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE, UNITS
from muninn_bench.studies.ablation.tables import figures, title_of

Indices = npt.NDArray[np.intp]


def _settings(raw: Raw, cell: Cell) -> str:
    """A program's settings; of the paper's method, those that are not the usual ones."""
    usual = raw.published if cell.key.method == "paper" else {}
    own = cell.key.settings.items()
    return settings_text({k: v for k, v in own if k not in usual or usual[k] != v})


@table("frontier", "All programs (KF 1)", long=True)
def frontier(raw: Raw) -> Iterator[Row]:
    """Every member of every method, and every cell of the paper's method, on the test calls. Means
    and violation shares are given without intervals here.{usual}
    """
    for cell in (cell for method in raw.methods for cell in raw.family(method)):
        yield {
            "method": title_of(cell.key.method),
            "order": cell.key.order,
            "settings": _settings(raw, cell),
            "evaluations": float(cell.evaluations.mean()),
            **figures(raw, cell, TOLERANCE, ("reuse", "median ms", "speed-up")),
            "mean deviation": float(cell.deviation.mean()),
            **figures(raw, cell, TOLERANCE, ("p95 deviation",)),
            **{f"violations at {t:g}": float((cell.deviation > t).mean()) for t in raw.tolerances},
            **figures(raw, cell, TOLERANCE, ("collisions", "success")),
        }


@table("quarter", "A quarter of the time (KF 1)")
def quarter(raw: Raw) -> Iterator[Row | str]:
    """For each method the timed member with the smallest mean deviation among those whose median
    time is at most a quarter of full compute's. Violations are of tolerance {tolerance:g}. The
    member is picked on the test calls, for every method alike.{usual}
    """
    limit = raw.milliseconds(raw.full)
    if limit is None:
        return
    late = []
    names = (
        "evaluations", "median ms", "speed-up", "mean deviation", "violations", "collisions",
        "success", "success / full, %",
    )  # fmt: skip
    for method in sorted(raw.methods, key=lambda method: method != "full"):
        most = limit if method == "full" else limit / 4
        times = [(cell, raw.milliseconds(cell)) for cell in raw.family(method)]
        within = [cell for cell, own in times if own is not None and own <= most]
        if within:
            best = min(within, key=lambda cell: float(cell.deviation.mean()))
            about = {"method": title_of(method), "settings": _settings(raw, best) or None}
            yield {**about, **figures(raw, best, TOLERANCE, names)}
        elif any(own for _, own in times):
            late.append(title_of(method))
    if late:
        yield f"No timed member within a quarter: {', '.join(late)}."


@table("overhead", "Cost model")
def cost_model(raw: Raw) -> Iterator[Row | str]:
    """Time of a call as the paper models it, T probes plus n cores, and with the sampler's step and
    the bookkeeping of every step added, against the measured median (batch 1). Errors are model /
    measured - 1.{usual}
    """
    cost = raw.overhead
    errors: list[tuple[float, float]] = []
    for cell in raw.family("paper"):
        timed, measured = raw.timed(cell), raw.milliseconds(cell)
        depth = cell.key.settings["depth"]
        stem, core = cost.get("stem_ms", {}).get(depth), cost.get("core_ms", {}).get(depth)
        if measured is None or stem is None or core is None:
            continue
        plain = raw.steps * stem + timed["evaluations"] * core
        whole = plain + raw.steps * (cost["step_ms"] + cost["bookkeeping_ms"])
        errors.append((plain / measured - 1.0, whole / measured - 1.0))
        yield {
            "settings": _settings(raw, cell),
            "evaluations": timed["evaluations"],
            "measured ms": measured,
            "T probe + n core, ms": plain,
            "error": errors[-1][0],
            "with sampler, ms": whole,
            "error with sampler": errors[-1][1],
        }
    if errors:
        middle = np.median(np.abs(errors), axis=0)
        yield "Median absolute error: {:.1%}, with the sampler {:.1%}.".format(*middle)


@table("overhead_probe", "Price of a probe")
def probe_price(raw: Raw) -> Iterator[Row]:
    """Median times at batch 1; the share is probe / full network, paid at every step."""
    for name, own in raw.overhead.get("networks", {}).items():
        for depth, stem in own["stem_ms"].items():
            yield {
                "network": name,
                "probe": depth,
                "full ms": own["full_ms"],
                "probe ms": stem,
                "core ms": raw.overhead["core_ms"][depth],
                "share": stem / own["full_ms"],
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
            programs[f"paper, {units}, tolerance {cell.key.settings['tolerance']:g}"] = cell
    for tolerance in raw.tolerances_of("adaptive"):
        choice = certified(raw, f"adaptive-{tolerance:g}", tolerance, RISK)
        if choice.test is not None and choice.place >= 0:
            programs[f"certified adaptive, tolerance {tolerance:g}"] = choice.test
    return programs


def groups(values: FloatArray, count: int = 5) -> list[Indices]:
    """Indices of calls in up to ``count`` groups of similar size; equal values stay together."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    place = np.searchsorted(edges, values, side="left")
    return [np.flatnonzero(place == group) for group in np.unique(place)]


def near_walls(raw: Raw, cell: Cell) -> FloatArray | None:
    """Clearance of the full plans of a cell's calls; None if not measured for all of them."""
    near = None if raw.clearance is None else raw.clearance[: len(cell.evaluations)]
    return None if near is None or len(near) < len(cell.evaluations) else near


@table("kf3_correlation", "Does compute follow difficulty? (KF 3)")
def difficulty(raw: Raw) -> Iterator[Row]:
    """Spread of the evaluations over test calls, and their rank correlation (Spearman, with
    two-sided p-value) with the clearance of the full plan, the deviation and collisions. Negative
    with clearance means more compute near walls.
    """
    for name, cell in adaptive_programs(raw).items():
        spent, clearance = cell.evaluations, near_walls(raw, cell)
        row: Row = {
            "program": name,
            "mean evaluations": float(spent.mean()),
            "s.d.": float(spent.std()),
            "fewest": float(spent.min()),
            "most": float(spent.max()),
        }
        others = {"clearance": clearance, "deviation": cell.deviation, "collisions": cell.collided}
        for what, other in others.items():
            pair = (None, None) if other is None else spearman(spent, other.astype(np.float64))
            row[f"with {what}"], row[f"p ({what})"] = pair
        yield row


@table("kf3_clearance", "By clearance (KF 3)")
def by_clearance(raw: Raw) -> Iterator[Row]:
    """Test calls in fifths by the smallest distance of the full plan to a wall, metres. Success is
    of the driven calls among them.
    """
    for name, cell in adaptive_programs(raw).items():
        near = near_walls(raw, cell)
        for calls in [] if near is None else groups(near):
            low, high = near[calls].min(), near[calls].max()  # type: ignore[index]
            ends = {"clearance from, m": float(low), "to, m": float(high)}
            yield {"program": name, **ends, **_group(cell, calls)}


@table("kf3_bins", "By evaluations spent (KF 3)")
def by_evaluations(raw: Raw) -> Iterator[Row]:
    """Test calls in up to five groups by the evaluations they took."""
    for name, cell in adaptive_programs(raw).items():
        spent = cell.evaluations
        for calls in groups(spent):
            ends = {"evaluations from": float(spent[calls].min()), "to": float(spent[calls].max())}
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

    def charged(self) -> FloatArray:
        """Share of the prediction charged to each step, (steps,); empty if unknown."""
        total = float(self.cell.charged.sum())
        return self.cell.charged / total if total > 0 else np.zeros(0)


def reliabilities(raw: Raw) -> Iterator[Reliability]:
    """The paper's ``Dhat`` and the certified per-call bound, at every tolerance."""
    for tolerance in raw.tolerances:
        for units in UNITS:
            cell = raw.paper(tolerance, RISK, units)
            if cell is not None:
                yield Reliability(units, tolerance, cell.estimate, cell)
        choice = certified(raw, f"adaptive-{tolerance:g}", tolerance, RISK)
        bound = call_bound(choice.calibrate, RISK) if choice.calibrate else None
        if choice.test is not None and bound is not None:
            yield Reliability("", tolerance, bound(choice.test.estimate), choice.test)


@table("kf4", "Is the predicted deviation one? (KF 4)")
def coverage(raw: Raw) -> Iterator[Row]:
    """Share of test calls whose deviation is at most what was predicted for them. The paper's
    prediction is the budget it spent, Dhat; the certified bound is an isotonic fit of the deviation
    on the accumulated estimate (first half of the calibrate calls) plus a conformal residual
    (second half). (The member was chosen on these calls as well; `muninn.calibrate` keeps them
    apart.)
    """
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


@table("kf4_charged", "Which steps the prediction is charged to (KF 4)", long=True)
def charged_steps(raw: Raw) -> Iterator[Row]:
    """Share of the estimates of all test calls that each step accounts for; step 0 is the
    noisiest.
    """
    found = {f"{own.name}, {own.tolerance:g}": own.charged() for own in reliabilities(raw)}
    known = {name: charged for name, charged in found.items() if len(charged) == raw.steps}
    for step in range(raw.steps if known else 0):
        yield {"step": step, **{name: float(charged[step]) for name, charged in known.items()}}
