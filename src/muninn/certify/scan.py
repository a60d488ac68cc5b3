"""Scan a family on calibration units: the member that keeps the promise, and its per-call bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from muninn.certify.certificate import Bound
from muninn.certify.journal import Journal
from muninn.certify.risk import FULL_EXCEEDS, order_statistic, scan_members
from muninn.certify.units import Outcome, Units
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn.programs.plan import Family
from muninn.progress import Task


def _measure(
    units: Units, family: Family, member: int, chunk: list[int], part: str, journal: Journal
) -> list[Outcome]:
    """Outcomes of a chunk of units, from the journal if they are there."""
    key = f"{part}/{member}/{chunk[0]}-{chunk[-1]}"
    stored = journal.get(key)
    if stored is None:
        outcomes = units.measure(family.member(member), chunk)
        journal.put(key, [outcome.to_json() for outcome in outcomes])
        return outcomes
    return [Outcome(**entry) for entry in stored]


def _chunks(members: list[int], size: int) -> list[list[int]]:
    return [members[at : at + size] for at in range(0, len(members), size)]


def choose_among(
    units: Units,
    family: Family,
    split: list[int],
    allowed: int,
    check_full: bool,
    journal: Journal,
    task: Task,
) -> tuple[int, list[Outcome], list[dict[str, Any]]]:
    """Scan the family; the last member whose count of violations stays within ``allowed``."""
    first = 0 if check_full else 1
    measured: list[list[Outcome]] = []

    def scan(member: int) -> Iterator[FloatArray]:
        advance = task(f"certify member {member} of {len(family) - 1}", len(split))
        measured.append([])
        for chunk in _chunks(split, units.chunk):
            outcomes = _measure(units, family, member, chunk, "certify", journal)
            measured[-1] += outcomes
            advance(len(chunk))
            yield np.array([outcome.excess for outcome in outcomes])

    accepted, violations = scan_members(map(scan, range(first, len(family))), len(split), allowed)
    if accepted == 0 and check_full:
        raise CalibrationError(FULL_EXCEEDS)
    realised = [
        _summary(first + place, measured[place], count, place < accepted)
        for place, count in enumerate(violations)
    ]
    return first + accepted - 1, measured[accepted - 1] if accepted else [], realised


def _summary(
    member: int, outcomes: list[Outcome], violations: int, accepted: bool
) -> dict[str, Any]:
    """Figures of one member on the certify split (on the part seen before it was rejected)."""
    deviation = np.concatenate([outcome.deviation for outcome in outcomes])
    evaluations = np.concatenate([outcome.evaluations for outcome in outcomes])
    return {
        "member": member,
        "accepted": accepted,
        "units": len(outcomes),
        "violations": violations,
        "evaluations_mean": float(evaluations.mean()),
        "evaluations_max": int(evaluations.max()),
        "fallbacks": sum(math.isnan(value) for each in outcomes for value in each.estimate),
        "deviation_mean": float(deviation.mean()),
        "deviation_p95": float(np.quantile(deviation, 0.95)),
    }


def fit_bound(
    units: Units,
    family: Family,
    member: int,
    outcomes: list[Outcome],
    split: list[int],
    risk: float,
    journal: Journal,
    task: Task,
) -> Bound:
    """Isotonic fit on the certify split, conformal residual on units that chose nothing."""
    if not outcomes:
        return Bound(np.zeros(1), np.zeros(1), 0.0)
    estimate = np.concatenate([outcome.estimate for outcome in outcomes])
    deviation = np.concatenate([outcome.deviation for outcome in outcomes])
    known = ~np.isnan(estimate)
    bound = Bound(np.zeros(1), np.zeros(1), 0.0)
    if known.any():
        fit = IsotonicRegression(out_of_bounds="clip").fit(estimate[known], deviation[known])
        bound = Bound(fit.X_thresholds_.astype(float), fit.y_thresholds_.astype(float), 0.0)
    advance = task("per-call bound", len(split))
    residuals = []
    for chunk in _chunks(split, units.chunk):
        for outcome in _measure(units, family, member, chunk, "bound", journal):
            fitted = bound.fitted(np.array(outcome.estimate))
            residuals.append(float(np.max(np.array(outcome.deviation) - fitted)))
        advance(len(chunk))
    place = len(residuals) + 1 - order_statistic(len(residuals), risk, None)
    return Bound(bound.estimate, bound.deviation, float(np.sort(residuals)[place - 1]))
