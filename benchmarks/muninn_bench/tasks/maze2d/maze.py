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
    """Every free cell as ``(row, column)`` in reading order."""
    return [(int(row), int(column)) for row, column in np.argwhere(~WALLS)]


def cell_centre(cell: Cell) -> FloatArray:
    """The world position of a cell's centre, shape ``(2,)``."""
    row, column = cell
    return np.array([EXTENT[0] + column + 0.5, EXTENT[3] - row - 0.5])


def cell_of(position: NDArray[np.floating]) -> Cell:
    """The cell ``(row, column)`` that holds a world position of shape ``(2,)``."""
    return int(np.floor(EXTENT[3] - position[1])), int(np.floor(position[0] - EXTENT[0]))


def steps_to(goal: Cell) -> dict[Cell, int]:
    """The number of cell steps from every free cell to ``goal``, by breadth-first search."""
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
    """One shortest cell route from ``start`` to ``goal``, both included.

    At every cell the next one is drawn uniformly among the neighbours that are nearer to the goal.
    """
    distance = steps_to(goal)
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
    """``count`` fresh problems; problem ``i`` depends on ``(seed, i)`` alone.

    >>> a, b = sample_problems(5, seed=1)[3], sample_problems(4, seed=1)[3]
    >>> bool((a.start == b.start).all() and (a.goal == b.goal).all())
    True
    """
    if count < 0:
        raise InputError(f"count must be at least 0, got {count}")
    return [draw_problem(np.random.default_rng([seed, index])) for index in range(count)]


def _neighbours(cell: Cell) -> list[Cell]:
    row, column = cell
    return [(row + a, column + b) for a, b in _STEPS if not WALLS[row + a, column + b]]
