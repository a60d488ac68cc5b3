"""The paper's six ablations, (i) to (vi), on the measured cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from muninn_bench.measure.statistics import mean
from muninn_bench.report.study_page import table
from muninn_bench.report.table import Row
from muninn_bench.studies.ablation import analysis
from muninn_bench.studies.ablation.analysis import NOT_MEASURED, Choice, certified
from muninn_bench.studies.ablation.raw import Cell, Raw
from muninn_bench.studies.ablation.settings import LONGEST_AGE, RISK, UNITS
from muninn_bench.studies.ablation.tables import CERTIFIED, FIGURES, figures

Choose = Callable[[float], Choice]
_SWEPT_FIGURES = tuple(name for name in FIGURES if name not in ("median ms", "p95 deviation"))


@table("i_tolerance", "(i) Tolerance")
def tolerances(raw: Raw) -> Iterator[Row]:
    """One row per tolerance and program, at risk {risk:g}. A certified program is the member that
    the certificate names on the calibrate calls; every figure is of the test calls. Violations are
    the share of test calls that deviate from full compute by more than the tolerance: at most
    {risk:g} is promised. Speed-up is the ratio of median batch-1 times.
    """
    names = tuple(name for name in FIGURES if name != "p95 deviation")
    for tolerance in raw.tolerances:
        programs = risk_programs(raw, tolerance)
        for name in (*CERTIFIED.values(), *(f"paper, {units}" for units in UNITS)):
            if name in programs:
                own = figures(raw, programs[name](RISK), tolerance, names)
                yield {"tolerance": tolerance, "program": name, **own}


def risk_programs(raw: Raw, tolerance: float) -> dict[str, Choose]:
    """Programs of table (ii) at a tolerance, in its order: a name, and the choice for a risk."""

    def paper(units: str, age: int | None, risk: float) -> Choice:
        cell = raw.paper(tolerance, risk, units, longest_age=age)
        return Choice(0, None, cell, "" if cell else NOT_MEASURED)

    programs: dict[str, Choose] = {f"paper, {own}": partial(paper, own, None) for own in UNITS}
    for own in ("algorithm", "mended"):
        programs[f"paper, {own}, age at most {LONGEST_AGE}"] = partial(paper, own, LONGEST_AGE)
    for method, name in (("probethresh", "fixed score threshold"), ("fixedskip", "fixed skip")):
        programs[name] = partial(analysis.heuristic, raw, method, tolerance)
    for kind, name in CERTIFIED.items():
        if f"{kind}-{tolerance:g}" in raw.methods or kind == "static":
            programs[name] = partial(certified, raw, f"{kind}-{tolerance:g}", tolerance)
    return programs


@table("ii_risk_{tolerance:g}", "(ii) Risk, at tolerance {tolerance:g}")
def risks(raw: Raw, tolerance: float) -> Iterator[Row]:
    """Share of test calls beyond the tolerance where each column's risk was asked for, and the
    evaluations spent. MACE is the paper's two-sided mean |violations - risk|, in which keeping a
    promise with room to spare counts as an error; mean excess counts only what is above the risk;
    both are over the risks that were measured. The two heuristics take the most aggressive member
    whose share of violations on 100 calibrate calls is at most the risk. The rows beside a
    certified cache are its neighbours in the family: how finely it could have chosen.
    """
    kinds = {name: kind for kind, name in CERTIFIED.items()}
    for name, choose in risk_programs(raw, tolerance).items():
        found = [choose(risk) for risk in raw.risks]
        asked = zip(found, raw.risks, strict=True)
        seen = [((own.test.deviation > tolerance).mean(), r) for own, r in asked if own.test]
        errors = analysis.calibration_error(*zip(*seen, strict=True)) if seen else (None, None)
        row = _risk_row(raw, name, found, tolerance)
        yield {**row, "MACE": errors[0], "mean excess": errors[1]}
        for offset, word in ((-1, "more careful"), (1, "more aggressive")):
            family = f"{kinds.get(name)}-{tolerance:g}"
            cells = [analysis.neighbour(raw, family, choice, offset) for choice in found]
            if any(cells):
                beside = [Choice(0, None, cell) for cell in cells]
                yield _risk_row(raw, f"... one member {word}", beside, tolerance)


def _risk_row(raw: Raw, label: str, choices: Sequence[Choice], tolerance: float) -> Row:
    row: Row = {"program": label}
    for risk, own in zip(raw.risks, choices, strict=True):
        (row[f"violations at {risk:g}"],) = figures(raw, own, tolerance, ["violations"]).values()
    for risk, own in zip(raw.risks, choices, strict=True):
        row[f"evaluations at {risk:g}"] = mean(own.test.evaluations) if own.test else None
    return row


def _swept_row(raw: Raw, cell: Cell, own: Row) -> Row:
    """A cell of a sweep: what it was asked for, what the sweep says of it, and its figures."""
    settings = cell.key.settings
    asked = {name: settings[name] for name in ("tolerance", "risk", "units")}
    return {**asked, **own, **figures(raw, cell, settings["tolerance"], _SWEPT_FIGURES)}


@table("iii_sensitivity", "(iii) Sensitivities")
def sensitivities(raw: Raw) -> Iterator[Row]:
    """The paper's budget with its sampler coefficients L_t, and with all of them set to 1."""
    for cell in raw.sweep("sensitivity"):
        words = "with L_t" if cell.key.settings["sensitivity"] else "without (L_t = 1)"
        yield _swept_row(raw, cell, {"accounting": words})


@table("iv_probes", "(iv) Probes")
def probes(raw: Raw) -> Iterator[Row]:
    """Cost is the time of the probe over that of the whole network, batch 1. Rank correlation
    (Spearman) of the score with the reuse error on ghost chains: pooled over calls and steps, as
    the paper reports it, and within single steps (median, 5th and 95th percentile over steps),
    which is what a decision per call can use. The remaining columns are the paper's method with
    that probe, on the test calls.
    """
    for depth, score, pairs in raw.ghosts():
        pooled, within = analysis.probe_correlations(pairs)
        known = within[np.isfinite(within)]
        spread = np.quantile(known, [0.5, 0.05, 0.95]) if len(known) else [float("nan")] * 3
        first: Row = {
            "probe": depth,
            "score": score,
            "ghost calls": pairs.calls,
            "cost": raw.probe_share(depth),
            "pooled correlation": pooled,
        }
        places = ("median", "p5", "p95")
        first |= {f"within step, {p}": float(v) for p, v in zip(places, spread, strict=True)}
        swept = [
            _swept_row(raw, cell, {})
            for cell in raw.sweep("depth", "score")
            if (cell.key.settings["depth"], cell.key.settings["score"]) == (depth, score)
        ]
        for own in swept or [{}]:
            yield {**first, **own}


@table("v_forbidden", "(v) Forbidden regions")
def forbidden(raw: Raw) -> Iterator[Row]:
    """The paper's method where reuse is forbidden in the first steps (prefix, noisy end) and in the
    last (suffix, clean end).
    """
    for cell in raw.sweep("prefix", "suffix"):
        ends = {name: cell.key.settings[name] for name in ("prefix", "suffix")}
        yield _swept_row(raw, cell, ends)


@table("vi_calibration", "(vi) Calibration calls")
def calibration(raw: Raw) -> Iterator[Row]:
    """The paper's method calibrated on fewer or more calls. The quantile is void where the order
    statistic it needs lies beyond the sample: the published algorithm then takes the largest
    residual and goes on, without the coverage it states.
    """
    for cell in raw.sweep("calls"):
        own = cell.key.settings
        words = "void" if own["void"] else "valid"
        yield _swept_row(raw, cell, {"calibration calls": own["calls"], "quantile": words})
