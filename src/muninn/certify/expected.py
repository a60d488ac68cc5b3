"""What a calibration will probably certify, estimated from tuning calls; never a promise."""

from __future__ import annotations

import numpy as np
from scipy import stats

from muninn.certify.calibrate import split_units
from muninn.certify.risk import order_statistic
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray

LIKELY = 0.8
"""Probability with which a calibration accepts what is said to be probable."""

FAR = 2.0
"""Factor by which one call must move an estimate before that is said."""

NEAR, ROUTE = 0.05, 0.3
"""Of the distance between two noises: most calls stay below the one where a call beyond the other
has taken another route."""


def allowance(calls: int, risk: float, confidence: float | None) -> tuple[int, int]:
    """Of so many calls, how many certify, and how many of these may exceed the tolerance.

    >>> allowance(400, 0.05, 0.95), allowance(1000, 0.05, 0.95), allowance(60, 0.05, 0.95)
    ((240, 6), (600, 20), (0, -1))
    """
    try:
        certify = len(split_units(calls, risk, confidence, tune=True, seed=0)["certify"])
    except CalibrationError:
        return 0, -1
    return certify, order_statistic(certify, risk, confidence) - 1


def below(deviation: FloatArray, counted: FloatArray, share: float) -> float:
    """The deviation that all but a share of the tuning calls, as they count, stay below.

    >>> below(np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4), 0.25)
    3.0
    """
    sizes = np.unique(deviation)
    beyond = (deviation > sizes[:, None]) @ counted
    return float(sizes[beyond <= share * len(deviation)][0])


def likelihood(
    deviation: FloatArray,
    counted: FloatArray,
    tolerances: FloatArray,
    calls: int,
    risk: float,
    confidence: float | None,
) -> FloatArray:
    """The probability that a calibration on so many calls certifies a program, for each tolerance.

    With ``b`` of ``n`` tuning calls beyond a tolerance, the violations among those that certify
    have a beta-binomial distribution: the share of violations has Jeffreys' prior.
    """
    certify, allowed = allowance(calls, risk, confidence)
    beyond = (deviation > tolerances[:, None]) @ counted
    shape = beyond + 0.5, len(deviation) - beyond + 0.5
    return np.asarray(stats.betabinom.cdf(allowed, max(certify, 1), *shape), dtype=np.float64)


def certifiable(
    deviation: FloatArray, counted: FloatArray, calls: int, risk: float, confidence: float | None
) -> float | None:
    """The smallest tolerance that a calibration on so many calls would probably certify.

    Args:
        deviation: of a program on tuning calls.
        counted: what each of them counts, 1 in the mean.
        calls, risk, confidence: of the calibration.

    Returns:
        None where it would certify none, for too few calls, of calibration or of tuning.
    """
    sizes = np.unique(deviation)
    accepted = likelihood(deviation, counted, sizes, calls, risk, confidence) >= LIKELY
    return float(sizes[accepted][0]) if accepted.any() else None


def hangs_on_one_call(
    deviation: FloatArray, counted: FloatArray, calls: int, risk: float, confidence: float | None
) -> bool:
    """Whether :func:`certifiable` would be another number, by far, without the worst tuning call.

    >>> usual, lone = np.linspace(0.01, 0.02, 64), np.append(np.linspace(0.01, 0.02, 63), 1.0)
    >>> [hangs_on_one_call(found, np.ones(64), 400, 0.05, 0.95) for found in (usual, lone)]
    [False, True]
    """
    whole = certifiable(deviation, counted, calls, risk, confidence)
    left = np.arange(len(deviation)) != np.argmax(deviation)
    rest = certifiable(deviation[left], counted[left], calls, risk, confidence)
    return whole is not None and (rest is None or whole > FAR * rest)


def strayed(deviation: FloatArray, counted: FloatArray, far: float) -> float:
    """The share of tuning calls, as they count, that take another route than full compute.

    They end nearly as ``far`` away as with another noise, while half of all calls stay near.

    >>> strayed(np.array([0.01, 0.01, 0.02, 1.9]), np.ones(4), far=2.0)
    0.25
    >>> strayed(np.array([0.6, 0.9, 1.2, 1.9]), np.ones(4), far=2.0)
    0.0
    """
    if np.median(deviation) > NEAR * far:
        return 0.0
    return float(counted @ (deviation > ROUTE * far)) / len(deviation)
