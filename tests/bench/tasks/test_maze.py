"""The grid, its walls and its problems, against closed forms and the environment's own map."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from maze_cases import inside_walls
from muninn.errors import InputError
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.maze import (
    CELL_SIZE,
    EXTENT,
    START_JITTER,
    WALLS,
    cell_centre,
    cell_of,
    free_cells,
    sample_problems,
    shortest_route,
    steps_to,
)


def test_grid_is_the_environments_own() -> None:
    maps = pytest.importorskip("gymnasium_robotics.envs.maze.maps")
    assert (np.array(maps.LARGE_MAZE) == 1).tolist() == WALLS.tolist()


def test_extent_and_cells_agree() -> None:
    left, right, bottom, top = EXTENT
    assert (right - left, top - bottom) == (WALLS.shape[1] * CELL_SIZE, WALLS.shape[0] * CELL_SIZE)
    assert all(cell_of(cell_centre(cell)) == cell for cell in free_cells())


def test_centres_are_wall_exactly_where_the_grid_says() -> None:
    cells = [(row, column) for row in range(WALLS.shape[0]) for column in range(WALLS.shape[1])]
    centres = np.array([cell_centre(cell) for cell in cells])
    assert inside_walls(centres).tolist() == [bool(WALLS[cell]) for cell in cells]


def test_outside_the_grid_and_values_that_are_not_finite_are_wall() -> None:
    points = np.array([[100.0, 0.0], [0.0, -50.0], [np.nan, 0.0], [np.inf, np.inf]])
    assert inside_walls(points).all()
    assert inside_walls(points, radius=0.1).all()


@pytest.mark.parametrize("radius", [0.1, 0.3, 0.45])
def test_radius_is_the_distance_to_the_nearest_wall(radius: float) -> None:
    # Cell (1, 1) has walls above and to the left, and a wall corner diagonally below right.
    x, y = cell_centre((1, 1))
    near, far = 0.5 - radius + 1e-6, 0.5 - radius - 1e-6
    diagonal = (np.hypot(0.5, 0.5) - radius) / np.sqrt(2.0)
    cases = [
        (x - near, y, True),
        (x - far, y, False),
        (x, y + near, True),
        (x, y + far, False),
        (x + diagonal + 1e-6, y - diagonal - 1e-6, True),
        (x + diagonal - 1e-6, y - diagonal + 1e-6, False),
    ]
    for across, up, touching in cases:
        assert inside_walls(np.array([across, up]), radius) == touching


def test_a_larger_disc_touches_whatever_a_smaller_one_does() -> None:
    points = np.random.default_rng(0).uniform([-6.0, -4.5], [6.0, 4.5], (5_000, 2))
    sizes = [inside_walls(points, radius) for radius in (0.0, 0.1, 0.25, 0.5)]
    assert all((large | ~small).all() for small, large in pairwise(sizes))


def test_segments_between_frames_are_checked() -> None:
    # Both ends are free, but the wall cell (2, 2) lies between them.
    jump = np.stack([cell_centre((2, 1)), cell_centre((2, 4))])
    assert not inside_walls(jump).any()
    assert not plan_is_free(jump)
    along = np.stack([cell_centre((1, 1)), cell_centre((1, 4))])
    assert plan_is_free(np.stack([along, jump])).tolist() == [True, False]


def test_routes_are_shortest_and_every_tie_is_taken() -> None:
    generator = np.random.default_rng(0)
    start, goal = (1, 1), (3, 4)  # Both ways around the block of walls take five steps.
    routes = {tuple(shortest_route(start, goal, generator)) for _ in range(50)}
    assert len(routes) == 2
    for route in routes:
        assert len(route) - 1 == steps_to(goal)[start] == 5
        assert not any(WALLS[cell] for cell in route)


def test_problems_are_free_at_rest_and_repeatable() -> None:
    problems = sample_problems(300, seed=7)
    for problem in problems:
        start, goal = cell_of(problem.start[:2]), cell_of(problem.goal)
        assert start != goal
        assert not problem.start[2:].any()
        for place, cell in ((problem.start[:2], start), (problem.goal, goal)):
            assert not inside_walls(place, radius=0.1)
            assert np.abs(place - cell_centre(cell)).max() <= START_JITTER
    again = sample_problems(300, seed=7)
    assert all((a.start == b.start).all() for a, b in zip(problems, again, strict=True))
    other = sample_problems(1, seed=8)[0]
    assert (other.start != problems[0].start).any()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="count"):
        sample_problems(-1, seed=0)
    with pytest.raises(InputError, match="plans"):
        plan_is_free(np.zeros(2))
    with pytest.raises(InputError, match="shape"):
        plan_is_free(np.zeros((4, 3)))
