"""Intervals and exact tests behind every reported figure; scipy does the arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from muninn.certify.risk import excess_p_value, wilson

__all__ = ["bootstrap_mean", "excess_p_value", "wilson", "worse_p_value"]


def bootstrap_mean(values: ArrayLike, seed: int = 0) -> tuple[float, float]:
    """95% percentile bootstrap interval of a mean, 10,000 replicates."""
    data = np.asarray(values, dtype=np.float64)
    if np.ptp(data) == 0.0:
        return float(data[0]), float(data[0])
    result = stats.bootstrap(
        (data,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(seed)
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def worse_p_value(reference: ArrayLike, candidate: ArrayLike) -> float:
    """One-sided exact McNemar p-value that ``candidate`` succeeds less often than ``reference``.

    Both are booleans over the same trials; only trials on which they differ carry information.

    >>> worse_p_value([True] * 6 + [False], [False] * 6 + [True])
    0.0625
    """
    first, second = np.asarray(reference, dtype=bool), np.asarray(candidate, dtype=bool)
    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    if lost + won == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + won, 0.5, alternative="greater").pvalue)
