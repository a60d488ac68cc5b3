"""Maze2D-large: the grid, its walls and fresh start/goal problems.

The grid is that of gymnasium-robotics' ``PointMaze_Large-v3`` (the same as D4RL's maze2d-large).
Row 0 is the top row; cells are one metre wide and the maze is centred on the origin, so the cell
``(row, column)`` has its centre at ``(column + 0.5 - 6, 4.5 - row - 0.5)`` in world metres.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muninn.errors import InputError
from muninn.model.schedule import FloatArray

Cell = tuple[int, int]

_MAP = """
111111111111
100001000001
101101010101
100000010001
101111011101
100101000001
110101010111
100100010001
111111111111
"""

WALLS: NDArray[np.bool_] = np.array([[c == "1" for c in row] for row in _MAP.split()])
"""Wall cells, ``(9 rows, 12 columns)``, row 0 at the top."""

CELL_SIZE = 1.0  # metres
EXTENT = (-6.0, 6.0, -4.5, 4.5)
"""``(left, right, bottom, top)`` of the maze in metres, as matplotlib's ``imshow`` wants it."""

BALL_RADIUS = 0.1  # of the environment's ball, metres
START_JITTER = 0.25
"""Largest offset per axis of a start or goal from its cell's centre, as in the environment."""

_STEPS: tuple[Cell, ...] = ((0, 1), (1, 0), (0, -1), (-1, 0))


@dataclass(frozen=True)
class MazeProblem:
    """A start (x, y, vx, vy), (4,), and a goal (2,) to be reached at rest; metres and m/s."""

    start: FloatArray
    goal: FloatArray


def free_cells() -> list[Cell]:
    """Return every free cell as ``(row, column)`` in reading order."""
    return [(int(row), int(column)) for row, column in np.argwhere(~WALLS)]


def cell_centre(cell: Cell) -> FloatArray:
    """Return the world position of a cell's centre, shape ``(2,)``."""
    row, column = cell
    return np.array([EXTENT[0] + column + 0.5, EXTENT[3] - row - 0.5])


def cell_of(position: NDArray[np.floating]) -> Cell:
    """Return the cell ``(row, column)`` that holds a world position of shape ``(2,)``."""
    return int(np.floor(EXTENT[3] - position[1])), int(np.floor(position[0] - EXTENT[0]))


def steps_to(goal: Cell) -> dict[Cell, int]:
    """Return the number of cell steps from every free cell to ``goal`` (breadth-first search).

    Raises:
        InputError: If ``goal`` is not a free cell.
    """
    if goal not in free_cells():
        raise InputError(f"{goal} is not a free cell; free cells are {free_cells()}")
    distance = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for neighbour in _neighbours(cell):
            if neighbour not in distance:
                distance[neighbour] = distance[cell] + 1
                queue.append(neighbour)
    return distance


def shortest_route(start: Cell, goal: Cell, generator: np.random.Generator) -> list[Cell]:
    """Return one shortest cell route, drawn at random among equally short ones.

    At every cell the next one is drawn uniformly among the neighbours that are nearer to the goal.

    Returns:
        The cells from ``start`` to ``goal``, both included.
    """
    distance = steps_to(goal)
    if start not in distance:
        raise InputError(f"{start} is not a free cell; free cells are {free_cells()}")
    route = [start]
    while route[-1] != goal:
        nearer = [n for n in _neighbours(route[-1]) if distance[n] == distance[route[-1]] - 1]
        route.append(nearer[int(generator.integers(len(nearer)))])
    return route


def draw_problem(generator: np.random.Generator, jitter: float = START_JITTER) -> MazeProblem:
    """Draw a start at rest and a goal, uniformly over ordered pairs of two different free cells."""
    cells = free_cells()
    first, second = generator.choice(len(cells), size=2, replace=False)
    start = cell_centre(cells[first]) + generator.uniform(-jitter, jitter, 2)
    goal = cell_centre(cells[second]) + generator.uniform(-jitter, jitter, 2)
    return MazeProblem(start=np.concatenate([start, np.zeros(2)]), goal=goal)


def sample_problems(count: int, seed: int) -> list[MazeProblem]:
    """Return ``count`` fresh problems; problem ``i`` depends on ``(seed, i)`` alone.

    Raises:
        InputError: If ``count`` is negative.

    >>> a, b = sample_problems(5, seed=1)[3], sample_problems(4, seed=1)[3]
    >>> bool((a.start == b.start).all() and (a.goal == b.goal).all())
    True
    """
    if count < 0:
        raise InputError(f"count must be at least 0, got {count}")
    return [draw_problem(np.random.default_rng([seed, index])) for index in range(count)]


def inside_walls(positions: NDArray[np.floating], radius: float = 0.0) -> NDArray[np.bool_]:
    """Whether a wall holds a position (..., 2), metres, or is nearer than ``radius``: (...).

    Everything outside the grid is wall.

    Raises:
        InputError: the last axis is not 2, or the radius is not at most one cell.
    """
    points = np.asarray(positions, dtype=np.float64)
    if points.shape[-1:] != (2,):
        raise InputError(f"positions must have shape (..., 2), got {points.shape}")
    if not 0.0 <= radius <= CELL_SIZE:
        raise InputError(f"radius must be in [0, {CELL_SIZE}], got {radius}")
    across = points[..., 0] - EXTENT[0]
    down = EXTENT[3] - points[..., 1]
    # A point that is not finite is nowhere free; the substitute lies outside the grid.
    across = np.where(np.isfinite(across), across, -10.0)
    down = np.where(np.isfinite(down), down, -10.0)
    padded = np.pad(WALLS, 2, constant_values=True)
    row = np.clip(np.floor(down), -1, WALLS.shape[0]).astype(np.int64)
    column = np.clip(np.floor(across), -1, WALLS.shape[1]).astype(np.int64)
    touching: NDArray[np.bool_] = padded[row + 2, column + 2]
    if radius == 0.0:
        return touching
    touching = touching.copy()
    for row_step in (-1, 0, 1):
        for column_step in (-1, 0, 1):
            wall = padded[row + row_step + 2, column + column_step + 2]
            top, left = row + row_step, column + column_step
            gap_down = np.maximum(np.maximum(top - down, down - (top + 1)), 0.0)
            gap_across = np.maximum(np.maximum(left - across, across - (left + 1)), 0.0)
            touching |= wall & (np.hypot(gap_down, gap_across) < radius)
    return touching


def plan_is_free(
    plan_positions: NDArray[np.floating], radius: float = 0.0, resolution: float = 0.02
) -> NDArray[np.bool_]:
    """Whether plans never touch a wall, straight segments between frames included.

    Args:
        plan_positions: metres, (horizon, 2), or (batch, horizon, 2) for an answer (batch,).
        radius: by which walls are inflated, metres.
        resolution: largest distance between two checked points of a segment, metres.

    Raises:
        InputError: the shape is neither of the two.
    """
    plans = np.asarray(plan_positions, dtype=np.float64)
    if plans.ndim == 2:
        return np.asarray(_one_plan_is_free(plans, radius, resolution))
    if plans.ndim != 3:
        raise InputError(f"plans must be (horizon, 2) or (batch, horizon, 2), got {plans.shape}")
    return np.array([_one_plan_is_free(plan, radius, resolution) for plan in plans], dtype=np.bool_)


def _one_plan_is_free(plan: FloatArray, radius: float, resolution: float) -> bool:
    if inside_walls(plan, radius).any():
        return False
    longest = float(np.linalg.norm(np.diff(plan, axis=0), axis=-1).max(initial=0.0))
    pieces = max(1, int(np.ceil(longest / resolution)))
    fractions = (np.arange(1, pieces) / pieces)[:, None, None]
    between = plan[:-1] * (1.0 - fractions) + plan[1:] * fractions
    return not bool(inside_walls(between, radius).any())


def _neighbours(cell: Cell) -> list[Cell]:
    row, column = cell
    return [(row + a, column + b) for a, b in _STEPS if not WALLS[row + a, column + b]]
