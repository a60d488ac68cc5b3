"""The paper's six ablations, (i) to (vi), on the measured cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from muninn_bench.studies.ablation.analysis import (
    HEURISTIC_CALLS,
    NOT_MEASURED,
    Choice,
    calibration_error,
    certified,
    heuristic,
    neighbour,
    probe_correlations,
)
from muninn_bench.studies.ablation.cells import Cell
from muninn_bench.studies.ablation.folder import RISK, UNITS, Raw
from muninn_bench.studies.ablation.tables import (
    CERTIFIED,
    FIGURES,
    Table,
    Value,
    figures,
    mean,
    proportion,
)

_SWEPT = ("tolerance", "risk", "units")
_CHOSEN = (
    "evaluations", "evaluations / T", "reuse", "speed-up", "mean deviation", "violations",
    "collisions", "success", "success / full, %",
)  # fmt: skip


def table_i(raw: Raw) -> Table:
    """(i) The tolerance as a knob."""
    names = tuple(name for name in FIGURES if name != "p95 deviation")
    rows: list[tuple[Value, ...]] = []
    for tolerance in raw.tolerances:
        for kind in ("static", "adaptive"):
            choice = certified(raw, f"{kind}-{tolerance:g}", tolerance, RISK)
            if choice.why != NOT_MEASURED or kind == "static":
                rows.append((tolerance, CERTIFIED[kind], *figures(raw, choice, tolerance, names)))
        for units in UNITS:
            cell = raw.paper(tolerance, RISK, units)
            rows.append((tolerance, f"paper, {units}", *figures(raw, cell, tolerance, names)))
    return Table(
        "i_tolerance",
        "(i) Tolerance",
        f"One row per tolerance and program, at risk {RISK:g}. A certified program is the member "
        "that the certificate names on the calibrate calls; every figure is of the test calls. "
        "Violations are the share of test calls that deviate from full compute by more than the "
        f"tolerance: at most {RISK:g} is promised. Speed-up is the ratio of median batch-1 times.",
        ("tolerance", "program", *names),
        rows,
    )


def tables_ii(raw: Raw) -> list[Table]:
    """(ii) Realised violations against the promised risk, at each tolerance it was measured at."""
    return [_table_ii(raw, tolerance) for tolerance in raw.risk_tolerances]


def _table_ii(raw: Raw, tolerance: float) -> Table:
    risks = raw.risks
    rows = []
    for program in risk_programs(raw, tolerance):
        found = [program.choose(risk) for risk in risks]
        rows.append(_risk_row(program.label, found, tolerance, risks, errors=True))
        if program.family is None or all(choice.test is None for choice in found):
            continue
        for offset, word in ((-1, "more careful"), (1, "more aggressive")):
            cells = [neighbour(raw, program.family, choice, offset) for choice in found]
            if all(cell is None for cell in cells):
                continue
            beside = [Choice(0, None, cell) for cell in cells]
            words = f"... one member {word}"
            rows.append(_risk_row(words, beside, tolerance, risks, errors=False))
    return Table(
        f"ii_risk_{tolerance:g}",
        f"(ii) Risk, at tolerance {tolerance:g}",
        "Share of test calls beyond the tolerance where each column's risk was asked for, and the "
        "evaluations spent. MACE is the paper's two-sided mean |violations - risk|, in which "
        "keeping a promise with room to spare counts as an error; mean excess counts only what is "
        "above the risk; both are over the risks that were measured. The two heuristics take "
        "the most aggressive member whose share of "
        f"violations on {HEURISTIC_CALLS} calibrate calls is at most the risk. The rows beside a "
        "certified cache are its neighbours in the family: how finely it could have chosen.",
        (
            "program",
            *(f"violations at {risk:g}" for risk in risks),
            *(f"evaluations at {risk:g}" for risk in risks),
            "MACE",
            "mean excess",
        ),
        rows,
    )


@dataclass(frozen=True)
class RiskProgram:
    """A row of table (ii): what it chooses for a risk.

    Attributes:
        label: its name.
        choose: risk to choice.
        family: the method whose neighbouring members are shown too; None for none.
    """

    label: str
    choose: Callable[[float], Choice]
    family: str | None = None


def risk_programs(raw: Raw, tolerance: float) -> list[RiskProgram]:
    """Programs of table (ii) at a tolerance, in its order."""
    aged = [(units, None) for units in UNITS] + [("algorithm", 4), ("mended", 4)]
    programs = [
        RiskProgram(
            f"paper, {units}" + (f", age at most {age}" if age else ""),
            partial(_paper_choice, raw, tolerance, units, age),
        )
        for units, age in aged
    ]
    for method, label in (("probethresh", "fixed score threshold"), ("fixedskip", "fixed skip")):
        programs.append(RiskProgram(label, partial(heuristic, raw, method, tolerance)))
    for kind in ("static", "adaptive"):
        family = f"{kind}-{tolerance:g}"
        choose = partial(certified, raw, family, tolerance)
        if family in raw.study.methods() or kind == "static":
            programs.append(RiskProgram(CERTIFIED[kind], choose, family))
    return programs


def _paper_choice(raw: Raw, tolerance: float, units: str, age: int | None, risk: float) -> Choice:
    cell = raw.paper(tolerance, risk, units, longest_age=age)
    return Choice(0, None, cell, "" if cell else NOT_MEASURED)


def _risk_row(
    label: str, choices: list[Choice], tolerance: float, risks: list[float], *, errors: bool
) -> tuple[Value, ...]:
    shares: list[Value] = []
    spent: list[Value] = []
    seen: list[tuple[float, float]] = []
    for choice, risk in zip(choices, risks, strict=True):
        if choice.test is None or not len(choice.test.deviation):
            shares.append(choice.why)
            spent.append(None)
            continue
        share = proportion(choice.test.deviation > tolerance)
        shares.append(share)
        spent.append(mean(choice.test.evaluations))
        if share is not None:
            seen.append((share.value, risk))
    error: tuple[Value, Value] = (None, None)
    if errors and seen:
        error = calibration_error(*zip(*seen, strict=True))
    return (label, *shares, *spent, *error)


def _swept(cell: Cell) -> tuple[Value, ...]:
    return tuple(cell.key.settings.get(name) for name in _SWEPT)


def _own_figures(raw: Raw, cell: Cell) -> tuple[Value, ...]:
    return figures(raw, cell, cell.key.settings.get("tolerance", raw.tolerance), _CHOSEN)


def table_iii(raw: Raw) -> Table:
    """(iii) With and without the sensitivities L_t."""
    rows = []
    for cell in raw.sweep("sensitivity"):
        words = "with L_t" if cell.key.settings["sensitivity"] else "without (L_t = 1)"
        rows.append((*_swept(cell), words, *_own_figures(raw, cell)))
    return Table(
        "iii_sensitivity",
        "(iii) Sensitivities",
        "The paper's budget with its sampler coefficients L_t, and with all of them set to 1.",
        (*_SWEPT, "accounting", *_CHOSEN),
        rows,
    )


def table_iv(raw: Raw) -> Table:
    """(iv) Probes and scores: price, and what the score knows of the error."""
    usual = (raw.published["prefix"], raw.published["suffix"])
    ghosts = list(raw.ghosts())
    ghosts = [own for own in ghosts if (own.prefix, own.suffix) == usual] or ghosts
    swept: dict[tuple[str, str], list[Cell]] = {}
    for cell in raw.sweep("depth", "score"):
        place = (cell.key.settings["depth"], cell.key.settings["score"])
        swept.setdefault(place, []).append(cell)
    rows: list[tuple[Value, ...]] = []
    for ghost in ghosts:
        scores, errors, _ = ghost.pairs()
        pooled, within = probe_correlations(scores, errors)
        known = within[np.isfinite(within)]
        spread = np.quantile(known, [0.5, 0.05, 0.95]) if len(known) else [float("nan")] * 3
        first = (ghost.depth, ghost.score, len(scores), raw.probe_share(ghost.depth), pooled)
        figures_of = [
            (*_swept(cell), *_own_figures(raw, cell))
            for cell in swept.get((ghost.depth, ghost.score), [])
        ] or [(None,) * (len(_SWEPT) + len(_CHOSEN))]
        rows += [(*first, *(float(value) for value in spread), *part) for part in figures_of]
    return Table(
        "iv_probes",
        "(iv) Probes",
        "Cost is the time of the probe over that of the whole network, batch 1. Rank correlation "
        "(Spearman) of the score with the reuse error on ghost chains: pooled over calls and "
        "steps, as the paper reports it, and within single steps (median, 5th and 95th percentile "
        "over steps), which is what a decision per call can use. The remaining columns are the "
        "paper's method with that probe, on the test calls.",
        (
            "probe", "score", "ghost calls", "cost", "pooled correlation", "within step, median",
            "within step, p5", "within step, p95", *_SWEPT, *_CHOSEN,
        ),
        rows,
    )  # fmt: skip


def table_v(raw: Raw) -> Table:
    """(v) Forbidden reuse at either end of the chain."""
    cells = raw.sweep("prefix", "suffix")
    rows = [
        (*_swept(c), c.key.settings["prefix"], c.key.settings["suffix"], *_own_figures(raw, c))
        for c in cells
    ]
    return Table(
        "v_forbidden",
        "(v) Forbidden regions",
        "The paper's method where reuse is forbidden in the first steps (prefix, noisy end) and "
        "in the last (suffix, clean end).",
        (*_SWEPT, "prefix", "suffix", *_CHOSEN),
        rows,
    )


def table_vi(raw: Raw) -> Table:
    """(vi) Calls used to calibrate the paper's envelope."""
    rows = []
    for cell in raw.sweep("calls"):
        void = cell.key.settings.get("void")
        words = None if void is None else "void" if void else "valid"
        calls = cell.key.settings["calls"]
        rows.append((*_swept(cell), calls, words, *_own_figures(raw, cell)))
    return Table(
        "vi_calibration",
        "(vi) Calibration calls",
        "The paper's method calibrated on fewer or more calls. The quantile is void where the "
        "order statistic it needs lies beyond the sample: the published algorithm then takes the "
        "largest residual and goes on, without the coverage it states.",
        (*_SWEPT, "calibration calls", "quantile", *_CHOSEN),
        rows,
    )
