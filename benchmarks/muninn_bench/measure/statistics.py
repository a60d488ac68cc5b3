"""Intervals and exact tests behind every reported figure; scipy does the arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from muninn.certify.risk import order_statistic


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95% Wilson interval of a proportion.

    >>> [round(end, 3) for end in wilson(5, 100)]
    [0.022, 0.112]
    """
    interval = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_mean(values: ArrayLike, seed: int = 0) -> tuple[float, float]:
    """95% percentile bootstrap interval of a mean, 10,000 replicates."""
    data = np.asarray(values, dtype=np.float64)
    if np.ptp(data) == 0.0:
        return float(data[0]), float(data[0])
    result = stats.bootstrap(
        (data,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(seed)
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


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
    tail = stats.betabinom.sf(violations - 1, trials, rank, marginal_units + 1 - rank)
    return float(tail)


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


def differ_p_value(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided exact McNemar p-value that two methods succeed equally often on the same trials.

    >>> differ_p_value([True] * 6 + [False], [False] * 6 + [True])
    0.125
    """
    one, two = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    differ = int((one != two).sum())
    if not differ:
        return 1.0
    return float(stats.binomtest(int((one & ~two).sum()), differ, 0.5).pvalue)
