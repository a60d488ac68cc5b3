"""Decisions and statistics of the study: who is certified, which heuristic stops where, Holm.

Everything is a function of measured cells; nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.isotonic import IsotonicRegression

from muninn.certify.certificate import Bound
from muninn.certify.risk import choose_member, order_statistic
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn.paper.ghost import GhostPairs
from muninn_bench.measure.statistics import spearman
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, Raw

TOO_FEW = "too few calls"
NOT_MEASURED = "not measured"
HEURISTIC_CALLS = 100
HOLM_LEVEL = 0.01
"""Both are said in words above tables (ii) and ``holm`` as well."""


@dataclass(frozen=True)
class Choice:
    """The member of a family that a rule chose, and its cells on both streams."""

    place: int  # in the family, -1 for full compute
    calibrate: Cell | None  # None for full compute or no choice
    test: Cell | None
    why: str = ""  # there is no test cell: too few calls, or not measured

    @property
    def member(self) -> int | str | None:
        """Its place, or ``full``; None where nothing was chosen."""
        return None if self.test is None else "full" if self.place < 0 else self.place


def certified_place(deviation: FloatArray, tolerance: float, risk: float, confidence: float) -> int:
    """Index of the member that a confident certificate names; -1 for full compute.

    The scan of :func:`muninn.certify.risk.choose_member` over deviations (calls, members), with
    full compute as the most careful member.

    Raises:
        CalibrationError: there are too few calls.
    """
    return choose_member(np.pad(deviation / tolerance, ((0, 0), (1, 0))), risk, confidence) - 1


def certified(
    raw: Raw, method: str, tolerance: float, risk: float, calls: int | None = None
) -> Choice:
    """What a certificate made from the calibrate cells of a method, or their first calls, names."""
    asked = (tolerance, risk, raw.confidence)
    return _choose(raw, method, lambda deviation: certified_place(deviation[:calls], *asked))


def heuristic(raw: Raw, method: str, tolerance: float, risk: float) -> Choice:
    """The most aggressive member whose share of violations on 100 calls is at most the risk.

    What one does without a certificate: a threshold set on a sample, with no correction for its
    size and no care about members in between.
    """

    def place(deviation: FloatArray) -> int:
        shares = (deviation[:HEURISTIC_CALLS] > tolerance).mean(axis=0)
        return int(np.flatnonzero(shares <= risk + 1e-12).max(initial=-1))

    return _choose(raw, method, place)


def neighbour(raw: Raw, method: str, choice: Choice, offset: int) -> Cell | None:
    """The test cell ``offset`` members from the chosen one; None beyond the family's ends."""
    place, members = choice.place + offset, len(raw.family(method, CALIBRATE))
    if choice.why or not -1 <= place < members:
        return None
    return _choose(raw, method, lambda _: place).test


def deviations(family: Sequence[Cell]) -> FloatArray:
    """Deviations of the calls that all members share, (calls, members)."""
    calls = min(len(cell.deviation) for cell in family)
    return np.stack([cell.deviation[:calls] for cell in family], axis=1).astype(np.float64)


def _choose(raw: Raw, method: str, rule: Callable[[FloatArray], int]) -> Choice:
    """The member at the place that a rule finds in the deviations of the calibrate cells."""
    family = raw.family(method, CALIBRATE)
    try:
        place = rule(deviations(family)) if family else -1
    except CalibrationError:
        return Choice(-1, None, None, TOO_FEW)
    chosen, test = None, raw.full if family else None
    if place >= 0:
        chosen = family[place]
        wanted = replace(chosen.key, stream=TEST)
        test = next((cell for cell in raw.family(method) if cell.key == wanted), None)
    return Choice(place, chosen, test, "" if test else NOT_MEASURED)


def calibration_error(shares: Sequence[float], risks: Sequence[float]) -> tuple[float, float]:
    """Mean of ``|share - risk|`` (the paper's MACE) and mean of ``max(0, share - risk)``.

    >>> [round(value, 6) for value in calibration_error([0.0, 0.3], [0.1, 0.2])]
    [0.1, 0.05]
    """
    gap = np.asarray(shares, dtype=np.float64) - np.asarray(risks, dtype=np.float64)
    return float(np.abs(gap).mean()), float(np.maximum(gap, 0.0).mean())


def probe_correlations(pairs: GhostPairs) -> tuple[float, FloatArray]:
    """Rank correlation of score and error, pooled and within each eligible step, (eligible,).

    Pooling mixes two things: that both change along the chain, which a table of the step index
    would know, and that the score tells calls apart, which is what a per-call decision needs. A
    step where either is constant has NaN.
    """
    scores, errors = pairs.scores[:, pairs.eligible], pairs.errors[:, pairs.eligible]
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
    residuals = np.sort(cell.deviation[half:] - knots.fitted(cell.estimate[half:]))
    return replace(knots, quantile=float(residuals[-rank]))
