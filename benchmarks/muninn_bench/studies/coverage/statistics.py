"""Figures and verdicts of the coverage benchmark, from its raw repetitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from muninn.certify.risk import order_statistic, units_needed
from muninn.model.schedule import FloatArray
from muninn_bench.studies.coverage.settings import CONFIDENCE, RISKS, SIZES
from muninn_bench.studies.coverage.trials import BOUND_UNITS
from muninn_bench.studies.coverage.trials import RISK as TRIAL_RISK

Repetitions = list[dict[str, Any]]
DELTA = 1.0 - CONFIDENCE
_EXACT_LIMIT = 4.0  # standard errors; two-sided, and there are 33 of these tests


@dataclass(frozen=True)
class Criterion:
    """One thing that must hold, and whether it did."""

    setting: str
    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.setting}: {self.name}: {self.detail}"


@dataclass(frozen=True)
class Cell:
    """One size and risk of one setting, over all repetitions. NaN where certification refused.

    Attributes:
        marginal_order, confident_order: order statistics; 0 means no certificate exists.
        marginal_refused, confident_refused: repetitions that refused.
        marginal_mean, marginal_error: mean realised risk and its standard error, the standard
            deviation over repetitions by the root of their number. It holds both sources of
            noise, the calibration draw and the fresh units on which a repetition is measured.
        exact_mean, exact_error, exact_expected: the same for the randomised marginal rule, whose
            risk is order / (size + 1), no less.
        confident_mean: mean realised risk of the confident certificate.
        exceeds_measured: share of repetitions whose realised risk on fresh units exceeds.
        exceeds_true: share whose member's true risk (pooled over all repetitions) exceeds.
        exceeds_running: the same for the risk that the proof bounds, of the member or any before.
    """

    setting: str
    size: int
    risk: float
    marginal_order: int
    marginal_refused: int
    marginal_mean: float
    marginal_error: float
    exact_mean: float
    exact_error: float
    exact_expected: float
    confident_order: int
    confident_refused: int
    confident_mean: float
    exceeds_measured: float
    exceeds_true: float
    exceeds_running: float


def true_risks(repetitions: Repetitions, fresh: int) -> tuple[FloatArray, FloatArray]:
    """Risk of each member, and of it or any before it, pooled over all fresh units."""
    units = fresh * len(repetitions)
    violations = np.sum([entry["violations"] for entry in repetitions], axis=0)
    running = np.sum([entry["running"] for entry in repetitions], axis=0)
    return violations / units, running / units


def summarise(setting: str, repetitions: Repetitions, fresh: int) -> list[Cell]:
    """The cells of a setting."""
    risks, running = true_risks(repetitions, fresh)
    cells = []
    for place, (size, risk) in enumerate((size, risk) for size in SIZES for risk in RISKS):
        table = np.array([entry["cells"][place] for entry in repetitions], dtype=float)
        assert (table[:, 0] == size).all() and (table[:, 1] == risk).all()
        marginal, exact, confident = table[:, 3], table[:, 4], table[:, 6]
        member = table[~np.isnan(table[:, 5]), 5].astype(int)
        order = order_statistic(size, risk, None)
        cells.append(
            Cell(
                setting=setting,
                size=size,
                risk=risk,
                marginal_order=order,
                marginal_refused=int(np.isnan(marginal).sum()),
                marginal_mean=_mean(marginal),
                marginal_error=_error(marginal),
                exact_mean=_mean(exact),
                exact_error=_error(exact),
                exact_expected=order / (size + 1),
                confident_order=order_statistic(size, risk, CONFIDENCE),
                confident_refused=int(np.isnan(confident).sum()),
                confident_mean=_mean(confident),
                exceeds_measured=_mean(confident[~np.isnan(confident)] > risk),
                exceeds_true=_mean(risks[member] > risk),
                exceeds_running=_mean(running[member] > risk),
            )
        )
    return cells


def _mean(values: Any) -> float:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else float("nan")


def _error(values: FloatArray) -> float:
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else float("nan")


def rank_test(repetitions: Repetitions, size: int) -> tuple[FloatArray, FloatArray, float]:
    """Counts of the new unit's rank in bins, counts expected of a uniform rank, chi-square p."""
    ranks = np.array([entry["ranks"][SIZES.index(size)] for entry in repetitions])
    bins = max(2, min(20, len(ranks) // 10))
    edges = np.unique(np.round(np.linspace(0, size + 1, bins + 1)).astype(int))
    counts = np.histogram(ranks, bins=edges + 0.5)[0].astype(float)
    expected = np.diff(edges) * len(ranks) / (size + 1)
    return counts, expected, float(stats.chisquare(counts, expected).pvalue)


def judge(setting: str, cells: list[Cell], repetitions: Repetitions) -> list[Criterion]:
    """Verdicts on one setting of the bulk repetitions."""
    count = len(repetitions)
    certified = [cell for cell in cells if cell.marginal_order > 0]
    confident = [cell for cell in cells if cell.confident_order > 0]
    limit = DELTA + 3.0 * float(np.sqrt(DELTA * CONFIDENCE / count))
    over = max(
        certified, key=lambda cell: _distance(cell.marginal_mean, cell.risk, cell.marginal_error)
    )
    off = max(certified, key=_exact_distance)
    p_values = {size: rank_test(repetitions, size)[2] for size in SIZES}
    criteria = [
        Criterion(
            setting,
            "marginal risk, mean at most alpha + 3 standard errors",
            over.marginal_mean <= over.risk + 3.0 * over.marginal_error,
            f"closest to its limit at n={over.size}, alpha={over.risk:g}: mean "
            f"{over.marginal_mean:.4f}, standard error {over.marginal_error:.4f}",
        ),
        Criterion(
            setting,
            "rank of the new unit uniform, chi-square p above .001",
            min(p_values.values()) > 0.001,
            ", ".join(f"p={p:.3f} (n={size})" for size, p in p_values.items()),
        ),
        Criterion(
            setting,
            "randomised marginal risk equals its exact value",
            _exact_distance(off) <= _EXACT_LIMIT,
            f"farthest at n={off.size}, alpha={off.risk:g}: mean {off.exact_mean:.4f}, exact "
            f"{off.exact_expected:.4f}, {_exact_distance(off):.1f} standard errors (limit "
            f"{_EXACT_LIMIT:g})",
        ),
    ]
    for field, name in (
        ("exceeds_measured", "measured on fresh units"),
        ("exceeds_true", "true risk of the member"),
        ("exceeds_running", "true risk of the member or any before it"),
    ):
        worst = max(confident, key=lambda cell: float(getattr(cell, field)))
        share = float(getattr(worst, field))
        criteria.append(
            Criterion(
                setting,
                f"confident, share of repetitions over alpha, {name}",
                share <= limit,
                f"largest at n={worst.size}, alpha={worst.risk:g}: {share:.4f}, limit {limit:.4f}",
            )
        )
    criteria.append(_refusals(setting, cells, count))
    return criteria


def _distance(value: float, limit: float, error: float) -> float:
    """How far a value lies above a limit, in standard errors."""
    return (value - limit) / max(error, 1e-12)


def _exact_distance(cell: Cell) -> float:
    return abs(_distance(cell.exact_mean, cell.exact_expected, cell.exact_error))


def _refusals(setting: str, cells: list[Cell], count: int) -> Criterion:
    """Refused always where too few units exist by the textbook formula, never elsewhere."""
    good, refused = True, []
    for cell in cells:
        for name, confidence, seen in (
            ("marginal", None, cell.marginal_refused),
            ("confident", CONFIDENCE, cell.confident_refused),
        ):
            none_exists = cell.size < units_needed(cell.risk, confidence)
            good &= seen == (count if none_exists else 0)
            if none_exists:
                refused.append(f"{name} n={cell.size} alpha={cell.risk:g}")
    return Criterion(
        setting,
        "refuses where no certificate exists, and only there",
        good,
        f"{count} of {count} repetitions each: " + "; ".join(refused),
    )


def judge_trials(name: str, trials: list[dict[str, Any]]) -> list[Criterion]:
    """Verdicts on one setting of the trials through the public verbs."""
    risk = np.array([trial["risk"] for trial in trials])
    covered = np.array([trial["covered"] for trial in trials], dtype=float)
    agreed = [trial["agreed"] for trial in trials if trial["agreed"] is not None]
    limit = DELTA + 3.0 * float(np.sqrt(DELTA * CONFIDENCE / len(trials)))
    # Coverage of split conformal prediction given its calibration has a Beta law (Vovk 2012).
    left_out = order_statistic(BOUND_UNITS, TRIAL_RISK, None)
    law = stats.beta(BOUND_UNITS + 1 - left_out, left_out)
    error = float(law.std() / np.sqrt(len(trials)))
    criteria = [
        Criterion(
            f"{name}, verbs",
            "confident, share of trials over alpha, measured",
            float(np.mean(risk > TRIAL_RISK)) <= limit,
            f"{int(np.sum(risk > TRIAL_RISK))} of {len(trials)}, limit {limit:.4f}; mean risk "
            f"{risk.mean():.4f} at alpha={TRIAL_RISK:g}",
        ),
        Criterion(
            f"{name}, verbs",
            "per-call bound covers, mean at least 1 - alpha - 3 standard errors",
            bool(covered.mean() >= 1.0 - TRIAL_RISK - 3.0 * error),
            f"mean {covered.mean():.4f}, standard error {error:.4f} (seen {_error(covered):.4f}), "
            f"exact mean of the method {law.mean():.4f}",
        ),
    ]
    if agreed:
        criteria.append(
            Criterion(
                f"{name}, verbs",
                "same scan as the bulk computation",
                all(agreed),
                f"{sum(agreed)} of {len(agreed)} trials",
            )
        )
    return criteria
