"""Demonstrations: fair between the sides, clear of the disc, repeatable, from start to goal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from muninn_bench.tasks.discs.data import HORIZON, ROOM, make_runs
from muninn_bench.tasks.discs.world import clearance


def recorded(count: int, seed: int) -> np.ndarray:
    return np.concatenate([make_runs(seed, number) for number in range(count)])


@pytest.fixture(scope="module")
def ways() -> np.ndarray:
    return recorded(600, seed=0)


def test_both_sides_are_equally_likely_whatever_the_ends(ways: np.ndarray) -> None:
    left = ways[np.arange(len(ways)), np.abs(ways[:, :, 0]).argmin(axis=1), 1] > 0.0
    high = ways[:, [0, -1], 1].mean(axis=1) > 0.0
    for sides in (left, left[high], left[~high]):
        assert binomtest(int(sides.sum()), len(sides)).pvalue > 0.001


def test_ways_lead_from_start_to_goal_with_room(ways: np.ndarray) -> None:
    assert min(clearance(way) for way in ways) >= ROOM - 1e-6
    np.testing.assert_allclose(ways[:, [0, -1], 0], np.tile([-1.0, 1.0], (len(ways), 1)))
    assert np.abs(ways[:, [0, -1], 1]).max() <= 0.3


def test_a_way_is_a_function_of_seed_and_number(ways: np.ndarray) -> None:
    again = recorded(3, seed=0)
    assert again.shape == (3, HORIZON, 2)
    np.testing.assert_array_equal(again, ways[:3])
    assert not np.array_equal(again, recorded(3, seed=1))
