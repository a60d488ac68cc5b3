"""How many violations a calibration may contain: the order statistics behind the promise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray

CHANCES = 4
"""Members that a scan may reject, at most; further limits would let hardly anything pass."""

FULL_EXCEEDS = (
    "full compute itself exceeds the tolerance on more units than the risk allows, against the "
    "reference or the eager sampler: it rounds differently. Raise the tolerance, deploy in higher "
    "precision, or use engine='eager'"
)


def require_risk(risk: float, confidence: float | None) -> None:
    """Raise InputError unless risk and confidence are usable probabilities."""
    if not 0.0 < risk < 1.0:
        raise InputError(
            f"risk must lie strictly between 0 and 1 (0.05 allows 5% of calls), got {risk}"
        )
    if confidence is not None and not 0.0 < confidence < 1.0:
        raise InputError(
            f"confidence must lie strictly between 0 and 1, or be None for the marginal "
            f"certificate, got {confidence}"
        )


def order_statistic(units: int, risk: float, confidence: float | None) -> int:
    """Which smallest tolerated aggressiveness may be chosen; 0 if no certificate exists.

    Marginal (``confidence=None``): ``floor(risk * (units + 1))``, exact by exchangeability.
    Confident: the largest r with ``P(Binomial(units, risk) <= r - 1) <= 1 - confidence``.

    >>> [order_statistic(n, 0.05, 0.95) for n in (58, 59, 200, 400)]
    [0, 1, 5, 13]
    >>> [order_statistic(n, 0.05, None) for n in (18, 19, 400)]
    [0, 1, 20]
    """
    require_risk(risk, confidence)
    if confidence is None:
        # 0.29 * 100 is 28.999...; the fuzz restores the exact product
        return math.floor(risk * (units + 1) + 1e-9)
    return _binomial_rank(units, risk, 1.0 - confidence)


def _binomial_rank(units: int, risk: float, err: float) -> int:
    """The largest r with ``P(Binomial(units, risk) <= r - 1) <= err``."""
    below = stats.binom.cdf(np.arange(units), units, risk)
    return int(np.searchsorted(below, err, side="right"))


def units_needed(risk: float, confidence: float | None) -> int:
    """Fewest calibration units from which a certificate exists.

    >>> units_needed(0.05, 0.95), units_needed(0.05, None)
    (59, 19)
    """
    require_risk(risk, confidence)
    if confidence is None:
        return math.ceil(1.0 / risk - 1.0 - 1e-9)
    return math.ceil(math.log(1.0 - confidence) / math.log1p(-risk) - 1e-9)


def require_units(units: int, risk: float, confidence: float | None, what: str) -> int:
    """The order statistic for ``units``, or a CalibrationError that says how many are needed."""
    rank = order_statistic(units, risk, confidence)
    if rank == 0:
        version = "marginal" if confidence is None else f"confidence {confidence:g}"
        raise CalibrationError(
            f"{units} {what} cannot support risk {risk:g} ({version}): at least "
            f"{units_needed(risk, confidence)} are needed. Give more calls or accept a higher risk"
        )
    return rank


def violation_limits(
    units: int, risk: float, confidence: float | None, what: str = "units"
) -> tuple[int, ...]:
    """Violations that a member may have before any other was rejected, after one was, and so on.

    The first limit is that of :func:`order_statistic`. It rarely uses up the probability
    ``1 - confidence`` of a wrong certificate; each further limit is the largest that fits into what
    those before it leave. The marginal version has one limit.

    Raises:
        CalibrationError: too few units; says how many are needed.

    >>> violation_limits(240, 0.05, 0.95), violation_limits(59, 0.05, 0.95)
    ((6, 4, 2, 2), (0,))
    """
    limits = [require_units(units, risk, confidence, what) - 1]
    while confidence is not None and len(limits) < CHANCES:
        spent = float(np.sum(stats.binom.cdf(limits, units, risk)))
        rank = _binomial_rank(units, risk, 1.0 - confidence - spent)
        if rank == 0:
            break
        limits.append(rank - 1)
    return tuple(limits)


@dataclass
class Scanned:
    """What a scan found, of every member that was scanned: whether it was accepted, and its
    violations, its own and those of the running maximum up to it."""

    passed: list[bool] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """How many members there are up to the last that was accepted, which is deployed."""
        return max((place + 1 for place, passed in enumerate(self.passed) if passed), default=0)

    def choosable(self, allowed: int) -> int:
        """How many members a call may choose from by itself, for whatever reason."""
        kept = [count <= allowed for count in self.running[: self.accepted]]
        return len(kept) if all(kept) else kept.index(False)


def scan_members(
    members: Iterable[Iterable[FloatArray]], units: int, limits: Sequence[int], *, running: bool
) -> Scanned:
    """Scan a family from conservative to aggressive and stop where the promise would break.

    ``members`` gives, for each in order, the excess (deviation over tolerance) of all units in
    chunks, and is consumed lazily. A member is accepted with at most ``limits[0]`` violations; once
    one was rejected, with at most ``limits[1]``, and so on; the scan ends when a member is rejected
    at the last limit. ``running`` counts a unit that left the tolerance ever after, even if it
    comes back: the marginal promise needs it, with one limit. Otherwise each member is tested by
    its own count, in the frozen order (docs/certificate.md has the proof).
    """
    worst, left = np.zeros(units), list(limits)
    found = Scanned()
    for chunks in members:
        at, own = 0, np.zeros(units)
        counted = worst if running else own
        for chunk in chunks:
            seen = slice(at, at + len(chunk))
            own[seen] = chunk
            worst[seen] = np.maximum(worst[seen], chunk)
            at = seen.stop
            if np.count_nonzero(counted > 1.0) > left[0]:
                break  # more units can only add violations
        found.own.append(int(np.count_nonzero(own > 1.0)))
        found.running.append(int(np.count_nonzero(worst > 1.0)))
        found.passed.append(int(np.count_nonzero(counted > 1.0)) <= left[0])
        if not found.passed[-1]:
            left.pop(0)
            if not left:
                break
    return found


def choose_member(excess: FloatArray, risk: float, confidence: float | None) -> int:
    """The member that :func:`muninn.calibrate` would name, from excess (units, members).

    Raises:
        CalibrationError: too few units, or even member 0 violates too often.
    """
    columns = ([column] for column in excess.T)
    limits = violation_limits(len(excess), risk, confidence)
    found = scan_members(columns, len(excess), limits, running=confidence is None)
    if not found.passed[0]:
        raise CalibrationError(FULL_EXCEEDS)
    return found.accepted - 1


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95% Wilson interval of a proportion.

    >>> [round(end, 3) for end in wilson(5, 100)]
    [0.022, 0.112]
    """
    interval = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def excess_p_value(
    violations: int, trials: int, risk: float, marginal_units: int | None = None
) -> float:
    """One-sided exact p-value that the violation rate is above what was promised.

    Binomial for a confident certificate. A marginal one, made from ``marginal_units``, promises
    the mean over calibrations only: its risk has at most a beta distribution, and the count a
    beta-binomial one.

    >>> excess_p_value(30, 400, 0.05) < 0.02 < excess_p_value(30, 400, 0.05, 100)
    True
    """
    if marginal_units is None:
        return float(stats.binomtest(violations, trials, risk, alternative="greater").pvalue)
    rank = order_statistic(marginal_units, risk, None)
    return float(stats.betabinom.sf(violations - 1, trials, rank, marginal_units + 1 - rank))
