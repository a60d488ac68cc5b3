"""Decisions and statistics of the study: who is certified, which heuristic stops where, Holm.

Everything is a function of measured cells; nothing is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn.isotonic import IsotonicRegression

from muninn.certify.certificate import Bound
from muninn.certify.risk import choose_member, order_statistic
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn_bench.studies.ablation.cells import CALIBRATE, TEST, Cell
from muninn_bench.studies.ablation.folder import Raw

TOO_FEW = "too few calls"
NOT_MEASURED = "not measured"
HEURISTIC_CALLS = 100
HOLM_LEVEL = 0.01


@dataclass(frozen=True)
class Choice:
    """The member of a family that a rule chose on the calibrate stream.

    Attributes:
        place: its index in the family, -1 for full compute.
        calibrate: its cell on the calibrate stream; None for full compute or no choice.
        test: its cell on the test stream; None if there is none, then ``why`` says why.
        why: empty, ``too few calls`` or ``not measured``.
    """

    place: int
    calibrate: Cell | None
    test: Cell | None
    why: str = ""


def certified(
    raw: Raw, method: str, tolerance: float, risk: float, calls: int | None = None
) -> Choice:
    """The member a confident certificate names, full compute counting as its most careful one.

    The scan of :func:`muninn.certify.risk.choose_member` over the calibrate cells of a method, or over
    their first ``calls`` calls.
    """
    family = raw.study.family(method, CALIBRATE)
    if not family:
        return Choice(-1, None, None, NOT_MEASURED)
    excess = deviations(family)[:calls] / tolerance
    padded = np.concatenate([np.zeros((len(excess), 1)), excess], axis=1)
    try:
        place = choose_member(padded, risk, raw.confidence) - 1
    except CalibrationError:
        return Choice(-1, None, None, TOO_FEW)
    return _choice(raw, family, place)


def heuristic(raw: Raw, method: str, tolerance: float, risk: float) -> Choice:
    """The most aggressive member whose share of violations on 100 calls is at most the risk.

    What one does without a certificate: a threshold set on a sample, with no correction for its
    size and no care about members in between.
    """
    family = raw.study.family(method, CALIBRATE)
    if not family:
        return Choice(-1, None, None, NOT_MEASURED)
    shares = (deviations(family)[:HEURISTIC_CALLS] > tolerance).mean(axis=0)
    kept = np.flatnonzero(shares <= risk + 1e-12)
    return _choice(raw, family, int(kept[-1]) if len(kept) else -1)


def neighbour(raw: Raw, method: str, choice: Choice, offset: int) -> Cell | None:
    """The test cell ``offset`` members from the chosen one; None beyond the family's ends."""
    family = raw.study.family(method, CALIBRATE)
    place = choice.place + offset
    if choice.why or not -1 <= place < len(family):
        return None
    return _choice(raw, family, place).test


def deviations(family: Sequence[Cell]) -> FloatArray:
    """Deviations of the calls that all members share, (calls, members)."""
    calls = min(len(cell.deviation) for cell in family)
    return np.stack([cell.deviation[:calls] for cell in family], axis=1).astype(np.float64)


def _choice(raw: Raw, family: Sequence[Cell], place: int) -> Choice:
    if place < 0:
        members = raw.study.family(family[0].key.method, TEST)
        return Choice(-1, None, raw.full(max((len(cell.deviation) for cell in members), default=0)))
    chosen = family[place]
    for cell in raw.study.family(chosen.key.method, TEST):
        if (cell.key.order, cell.key.settings) == (chosen.key.order, chosen.key.settings):
            return Choice(place, chosen, cell)
    return Choice(place, chosen, None, NOT_MEASURED)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values; those at most the level are rejected, family-wise.

    >>> [round(value, 6) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    stepped = np.maximum.accumulate(values[order] * factors)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def calibration_error(shares: Sequence[float], risks: Sequence[float]) -> tuple[float, float]:
    """Mean of ``|share - risk|`` (the paper's MACE) and mean of ``max(0, share - risk)``.

    >>> [round(value, 6) for value in calibration_error([0.0, 0.3], [0.1, 0.2])]
    [0.1, 0.05]
    """
    gap = np.asarray(shares, dtype=np.float64) - np.asarray(risks, dtype=np.float64)
    return float(np.abs(gap).mean()), float(np.maximum(gap, 0.0).mean())


def spearman(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Rank correlation and its two-sided p-value; NaN where one side is constant or too short."""
    if len(first) < 3 or np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return float("nan"), float("nan")
    result = stats.spearmanr(first, second)
    return float(result.statistic), float(result.pvalue)


def probe_correlations(scores: FloatArray, errors: FloatArray) -> tuple[float, FloatArray]:
    """Rank correlation of score and error, pooled and within each step.

    Pooling mixes two things: that both change along the chain, which a table of the step index
    would know, and that the score tells calls apart, which is what a per-call decision needs.

    Args:
        scores, errors: (calls, eligible).

    Returns:
        The pooled correlation, and one per eligible step (eligible,), NaN where undefined.
    """
    pooled, _ = spearman(scores.ravel(), errors.ravel())
    within = [spearman(score, error)[0] for score, error in zip(scores.T, errors.T, strict=True)]
    return pooled, np.array(within)


def call_bound(cell: Cell, risk: float) -> Bound | None:
    """Per-call bound ``max(m(A) + q, 0)`` from the calibrate cell of a member.

    The first half of the calls fits ``m`` by isotonic regression, the second gives the conformal
    residual ``q``, as :func:`muninn.calibrate` does. None if the second half is too small, or if
    the program keeps no estimate.
    """
    half = len(cell.deviation) // 2
    rank = order_statistic(len(cell.deviation) - half, risk, None)
    if half == 0 or rank == 0 or not np.isfinite(cell.estimate).all():
        return None
    fit = IsotonicRegression(out_of_bounds="clip").fit(cell.estimate[:half], cell.deviation[:half])
    knots = Bound(fit.X_thresholds_.astype(float), fit.y_thresholds_.astype(float), 0.0)
    fitted = np.interp(cell.estimate[half:], knots.estimate, knots.deviation)
    residuals = np.sort(cell.deviation[half:] - fitted)
    return Bound(knots.estimate, knots.deviation, float(residuals[len(residuals) - rank]))
