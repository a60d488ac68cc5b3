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

    With ``b`` of ``n`` tuning calls beyond a tolerance, the violations among those that certify
    have a beta-binomial distribution: the share of violations has Jeffreys' prior.
    """
    certify, allowed = allowance(calls, risk, confidence)
    tolerances = np.unique(deviation)
    beyond = (deviation > tolerances[:, None]) @ counted
    shape = beyond + 0.5, len(deviation) - beyond + 0.5
    accepted = stats.betabinom.cdf(allowed, max(certify, 1), *shape) >= LIKELY
    return float(tolerances[accepted][0]) if accepted.any() else None
