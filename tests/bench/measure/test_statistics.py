"""Adjusted p-values, rank correlations and estimates, against hand-made numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muninn_bench.measure import statistics


def test_holm_by_hand() -> None:
    # Sorted .001, .003, .02, .5 times 4, 3, 2, 1 = .004, .009, .04, .5; already increasing.
    assert statistics.holm([0.02, 0.001, 0.5, 0.003]) == pytest.approx([0.04, 0.004, 0.5, 0.009])
    # The second would be .012 on its own but never falls below the one before it.
    assert statistics.holm([0.01, 0.006]) == pytest.approx([0.012, 0.012])
    assert statistics.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_the_value_and_bonferroni(values: list[float]) -> None:
    adjusted = statistics.holm(values)
    for value, own in zip(values, adjusted, strict=True):
        assert min(value, 1.0) <= own <= min(1.0, len(values) * value) + 1e-12
    assert min(adjusted) == pytest.approx(min(1.0, len(values) * min(values)))


def test_correlation_of_a_constant_is_empty_not_a_warning() -> None:
    assert math.isnan(statistics.spearman(np.zeros(9), np.arange(9.0))[0])
    assert statistics.spearman(np.arange(9.0), np.arange(9.0) ** 3)[0] == pytest.approx(1.0)


def test_estimates_carry_their_intervals() -> None:
    share = statistics.proportion(np.arange(100) < 5)
    assert share is not None and share.value == 0.05
    assert (share.low, share.high) == statistics.wilson(5, 100)
    assert statistics.proportion(np.zeros(0, dtype=bool)) is None
    values = np.arange(10.0)
    own = statistics.mean(values)
    assert own.value == 4.5 and (own.low, own.high) == statistics.bootstrap_mean(values)
