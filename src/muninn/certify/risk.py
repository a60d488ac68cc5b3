"""How many violations a calibration may contain: the order statistics behind the promise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray

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


def choice_limit(units: int, risk: float, confidence: float | None) -> int:
    """Violations of the running maximum up to which calls may choose a member; -1 if they may not.

    Confident: the certified member and the free choice are two statements about the same units. So
    the free choice has what the test of members leaves of ``1 - confidence``, and both hold
    together. The marginal version makes one statement.

    >>> [choice_limit(n, 0.05, 0.95) for n in (59, 240, 400)], choice_limit(400, 0.05, None)
    ([-1, 4, 10], 19)
    """
    rank = order_statistic(units, risk, confidence)
    if confidence is None or rank == 0:
        return rank - 1
    spent = float(stats.binom.cdf(rank - 1, units, risk))
    return _binomial_rank(units, risk, 1.0 - confidence - spent) - 1


@dataclass(frozen=True)
class Scanned:
    """What a scan found: how many members were accepted, and the violations of each one scanned,
    the rejected one included: its own, and of the running maximum up to it."""

    accepted: int
    own: list[int]
    running: list[int]

    def choosable(self, allowed: int) -> int:
        """How many members a call may choose from by itself, for whatever reason."""
        kept = [count <= allowed for count in self.running[: self.accepted]]
        return len(kept) if all(kept) else kept.index(False)


def scan_members(
    members: Iterable[Iterable[FloatArray]], units: int, allowed: int, *, running: bool
) -> Scanned:
    """Scan a family from conservative to aggressive and stop where the promise would break.

    ``members`` gives, for each in order, the excess (deviation over tolerance) of all units in
    chunks, and is consumed lazily. ``running`` counts a unit that left the tolerance ever after,
    even if it comes back: the marginal promise needs it. Otherwise each member is tested by its
    own count, in the frozen order, up to the first that fails (docs/certificate.md has the proof).
    """
    worst = np.zeros(units)
    found = Scanned(0, [], [])
    for chunks in members:
        at, own = 0, np.zeros(units)
        for chunk in chunks:
            seen = slice(at, at + len(chunk))
            own[seen] = chunk
            worst[seen] = np.maximum(worst[seen], chunk)
            at = seen.stop
            if np.count_nonzero((worst if running else own) > 1.0) > allowed:
                break  # more units can only add violations
        found.own.append(int(np.count_nonzero(own > 1.0)))
        found.running.append(int(np.count_nonzero(worst > 1.0)))
        if (found.running if running else found.own)[-1] > allowed:
            break
        found = replace(found, accepted=found.accepted + 1)
    return found


def choose_member(excess: FloatArray, risk: float, confidence: float | None) -> int:
    """The member that :func:`muninn.calibrate` would name, from excess (units, members).

    Raises:
        CalibrationError: too few units, or even member 0 violates too often.
    """
    rank = require_units(len(excess), risk, confidence, "units")
    columns = ([column] for column in excess.T)
    found = scan_members(columns, len(excess), rank - 1, running=confidence is None)
    if found.accepted == 0:
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
