"""Clearance agrees with the exact wall test and with distances known by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn_bench.tasks.maze2d.clearance import clearance, plan_is_free, wall_distance
from muninn_bench.tasks.maze2d.maze import WALLS, cell_centre, free_cells


def test_distance_is_that_to_the_nearest_wall_of_all() -> None:
    points = np.random.default_rng(0).uniform([-6, -4.5], [6, 4.5], (4000, 2))
    walls = np.array([cell_centre((row, column)) for row, column in np.argwhere(WALLS)])
    gaps = np.maximum(np.abs(points[:, None] - walls) - 0.5, 0.0)
    exact = np.minimum(np.linalg.norm(gaps, axis=-1).min(axis=1), 1.0)
    np.testing.assert_allclose(wall_distance(torch.from_numpy(points)).numpy(), exact, atol=1e-12)


def test_centres_of_free_cells_are_half_a_cell_away_or_more() -> None:
    centres = torch.from_numpy(np.array([cell_centre(cell) for cell in free_cells()]))
    assert torch.allclose(wall_distance(centres).min(), torch.tensor(0.5, dtype=torch.float64))


def test_plans_agree_with_plan_is_free() -> None:
    generator = np.random.default_rng(1)
    ends = generator.uniform([-5, -3.5], [5, 3.5], (60, 2, 2))
    weights = np.linspace(0.0, 1.0, 12)[None, :, None]
    plans = ends[:, :1] * (1 - weights) + ends[:, 1:] * weights
    free = plan_is_free(plans, 0.1)
    assert 0 < free.sum() < 60
    assert ((clearance(torch.from_numpy(plans)) >= 0.1).numpy() == free).mean() > 0.98


def test_segments_count_and_bad_plans_have_no_clearance() -> None:
    a, b = cell_centre(free_cells()[0]), cell_centre(free_cells()[-1])
    jump = torch.from_numpy(np.stack([a, b])[None])
    assert float(clearance(jump)) == 0.0
    assert float(wall_distance(jump).min()) > 0.4
    broken = jump.clone()
    broken[0, 0, 0] = float("nan")
    assert float(clearance(broken)) == 0.0
    with pytest.raises(InputError, match="shape"):
        clearance(jump[0])
