"""Figures and verdicts of the coverage study, from its raw repetitions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from muninn.certify.risk import excess_p_value, order_statistic, units_needed
from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import holm
from muninn_bench.measure.verdicts import Criterion, share_limit
from muninn_bench.studies.coverage.settings import CONFIDENCE, RISKS, SIZES, TRIAL_RISK, Setting

Row = dict[str, Any]
DELTA = 1.0 - CONFIDENCE
EXCEEDS = {
    "exceeds_measured": "measured on fresh units",
    "exceeds_true": "true risk of the member",
}
_EXACT_LIMIT = 4.0  # standard errors; two-sided, and there are 33 of these tests


def true_risks(repetitions: list[Row], fresh: int) -> FloatArray:
    """Risk of each member, pooled over all fresh units."""
    violations = np.sum([entry["violations"] for entry in repetitions], axis=0)
    return np.asarray(violations / (fresh * len(repetitions)))


def summarise(setting: str, repetitions: list[Row], fresh: int) -> list[Row]:
    """One row per size and risk, over all repetitions; NaN where certification refused.

    An order of 0 means that no certificate exists; ``refused`` counts repetitions. ``mean`` and
    ``error`` are of the realised risk, whose standard error holds both sources of noise, the
    calibration draw and the fresh units of a repetition. ``exact`` is the randomised marginal rule,
    whose risk is order / (size + 1), no less. What ``exceeds`` the risk: see :data:`EXCEEDS`.
    """
    risks = true_risks(repetitions, fresh)
    rows = []
    for place, (size, risk) in enumerate(product(SIZES, RISKS)):
        cells = [entry["cells"][place] for entry in repetitions]
        assert all((cell["size"], cell["alpha"]) == (size, risk) for cell in cells)
        marginal, exact, confident, member = (
            np.array([cell[name] for cell in cells if cell[name] is not None])
            for name in ("marginal_risk", "randomised_risk", "confident_risk", "confident_member")
        )
        order, chosen = order_statistic(size, risk, None), member.astype(int)
        rows.append(
            {
                "setting": setting,
                "size": size,
                "risk": risk,
                "marginal_order": order,
                "marginal_refused": len(cells) - len(marginal),
                "marginal_mean": _mean(marginal),
                "marginal_error": _error(marginal),
                "exact_mean": _mean(exact),
                "exact_error": _error(exact),
                "exact_expected": order / (size + 1),
                "confident_order": order_statistic(size, risk, CONFIDENCE),
                "confident_refused": len(cells) - len(confident),
                "confident_mean": _mean(confident),
                "exceeds_measured": _mean(confident > risk),
                "exceeds_true": _mean(risks[chosen] > risk),
            }
        )
    return rows


def _mean(values: Any) -> float:
    return float(values.mean()) if values.size else float("nan")


def _error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")


def judge(setting: str, cells: list[Row], repetitions: int) -> list[Criterion]:
    """Verdicts on one setting of the bulk repetitions."""
    for_marginal = [cell for cell in cells if cell["marginal_order"]]
    over = max(for_marginal, key=lambda cell: _distance(cell, "marginal", "risk"))
    far = max(for_marginal, key=lambda cell: abs(_distance(cell, "exact", "exact_expected")))
    off = abs(_distance(far, "exact", "exact_expected"))
    found = [
        (
            "marginal risk, mean at most alpha + 3 standard errors",
            over["marginal_mean"] <= over["risk"] + 3.0 * over["marginal_error"],
            "closest to its limit at n={size}, alpha={risk:g}: mean {marginal_mean:.4f}, standard "
            "error {marginal_error:.4f}".format(**over),
        ),
        (
            "randomised marginal risk equals its exact value",
            off <= _EXACT_LIMIT,
            "farthest at n={size}, alpha={risk:g}: mean {exact_mean:.4f}, exact "
            "{exact_expected:.4f}".format(**far)
            + f", {off:.1f} standard errors (limit {_EXACT_LIMIT:g})",
        ),
    ]
    limit = share_limit(DELTA, repetitions)
    for_confident = [cell for cell in cells if cell["confident_order"]]
    for field, name in EXCEEDS.items():
        worst = max(for_confident, key=lambda cell: float(cell[field]))
        text = f"largest at n={worst['size']}, alpha={worst['risk']:g}: {worst[field]:.4f}"
        name = f"confident, share of repetitions over alpha, {name}"
        found.append((name, worst[field] <= limit, f"{text}, limit {limit:.4f}"))
    found.append(_refusals(cells, repetitions))
    return [Criterion(setting, *one) for one in found]


def _distance(cell: Row, name: str, limit: str) -> float:
    """How far a mean lies above a limit, in standard errors."""
    return float((cell[f"{name}_mean"] - cell[limit]) / max(cell[f"{name}_error"], 1e-12))


def _refusals(cells: list[Row], count: int) -> tuple[str, bool, str]:
    """Refused always where too few units exist by the textbook formula, never elsewhere."""
    good, refused = True, []
    for cell, (name, confidence) in product(cells, (("marginal", None), ("confident", CONFIDENCE))):
        none_exists = cell["size"] < units_needed(cell["risk"], confidence)
        good &= cell[f"{name}_refused"] == (count if none_exists else 0)
        if none_exists:
            refused.append(f"{name} n={cell['size']} alpha={cell['risk']:g}")
    text = f"{count} of {count} repetitions each: " + "; ".join(refused)
    return "refuses where no certificate exists, and only there", good, text


def over_risk(trials: list[Row]) -> int:
    """Trials whose fresh units exceeded the tolerance more often than was promised."""
    return sum(trial["risk"] > TRIAL_RISK for trial in trials)


def judge_trials(setting: Setting, trials: list[Row]) -> list[Criterion]:
    """Verdicts on one setting of the trials through the public verbs."""
    risk, covered = (
        np.array([trial[key] for trial in trials]) for key in ("risk", "bound_covered")
    )
    agreed = [trial["agreed"] for trial in trials if trial["agreed"] is not None]
    beyond, limit = over_risk(trials), share_limit(DELTA, len(trials))
    # Coverage of split conformal prediction given its calibration has a Beta law (Vovk 2012).
    units = len(setting.split(0)["bound"])
    left_out = order_statistic(units, TRIAL_RISK, None)
    law = stats.beta(units + 1 - left_out, left_out)
    error = float(law.std() / np.sqrt(len(trials)))
    found = [
        (
            "confident, share of trials over alpha, measured",
            beyond / len(trials) <= limit,
            f"{beyond} of {len(trials)}, limit {limit:.4f}; mean risk {risk.mean():.4f} at "
            f"alpha={TRIAL_RISK:g}",
        ),
        (
            "per-call bound covers, mean at least 1 - alpha - 3 standard errors",
            bool(covered.mean() >= 1.0 - TRIAL_RISK - 3.0 * error),
            f"mean {covered.mean():.4f}, standard error {error:.4f} (seen {_error(covered):.4f}), "
            f"exact mean of the method {law.mean():.4f}",
        ),
    ]
    if agreed:
        text = f"{sum(agreed)} of {len(agreed)} trials"
        found.append(("same scan as the bulk computation", all(agreed), text))
    return [Criterion(f"{setting.name}, verbs", *one) for one in found]


def judge_together(trials: dict[Setting, list[Row]]) -> Criterion:
    """The shares of trials over alpha of all settings, in exact tests with Holm's adjustment."""
    p_values = [excess_p_value(over_risk(own), len(own), DELTA) for own in trials.values()]
    least, name = min(zip(holm(p_values), (setting.name for setting in trials), strict=True))
    rule = "share of trials over alpha, exact binomial tests, Holm's p above .05"
    return Criterion("all verbs", rule, least > 0.05, f"smallest p={least:.3f}, of {name}")
