"""Intervals and exact tests behind every reported figure; scipy does the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from scipy import stats

from muninn.certify.risk import excess_p_value, wilson

__all__ = ["bootstrap_mean", "excess_p_value", "wilson", "worse_p_value"]


def bootstrap_mean(values: ArrayLike) -> tuple[float, float]:
    """95% percentile bootstrap interval of a mean, 10,000 replicates."""
    data = np.asarray(values, dtype=np.float64)
    if np.ptp(data) == 0.0:
        return float(data[0]), float(data[0])
    result = stats.bootstrap(
        (data,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0)
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def worse_p_value(reference: ArrayLike, candidate: ArrayLike) -> float:
    """One-sided exact McNemar p-value that ``candidate`` succeeds less often than ``reference``.

    Both are booleans over the same trials; only trials on which they differ carry information.

    >>> worse_p_value([True] * 6 + [False], [False] * 6 + [True])
    0.0625
    """
    return differ_p_value(reference, candidate, "greater")


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Share(Estimate):
    """A proportion with its 95% interval."""


def proportion(hits: npt.NDArray[np.bool_]) -> Share | None:
    """Share with its Wilson interval; None of nothing."""
    if not len(hits):
        return None
    count = int(hits.sum())
    return Share(count / len(hits), *wilson(count, len(hits)))


def mean(values: ArrayLike) -> Estimate:
    """Mean with its bootstrap interval."""
    data = np.ascontiguousarray(values, dtype=np.float64)
    return Estimate(float(data.mean()), *_interval(data.tobytes()))


@cache
def _interval(data: bytes) -> tuple[float, float]:
    """Kept, since several tables report the same data and one interval takes up to a second."""
    return bootstrap_mean(np.frombuffer(data, dtype=np.float64))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values; those at most the level are rejected, family-wise.

    >>> [round(value, 6) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def spearman(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> tuple[float, float]:
    """Rank correlation and its two-sided p-value; NaN where one side is constant or too short."""
    if len(first) < 3 or np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return float("nan"), float("nan")
    result = stats.spearmanr(first, second)
    return float(result.statistic), float(result.pvalue)


def differ_p_value(
    first: ArrayLike, second: ArrayLike, alternative: Literal["two-sided", "greater"] = "two-sided"
) -> float:
    """Two-sided exact McNemar p-value that two methods succeed equally often on the same trials.

    >>> differ_p_value([True] * 6 + [False], [False] * 6 + [True])
    0.125
    """
    one, two = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    differ = int((one != two).sum())
    if not differ:
        return 1.0
    won = int((one & ~two).sum())
    return float(stats.binomtest(won, differ, 0.5, alternative).pvalue)
