"""A plane with one disc in the middle; a point goes from the left side to the right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muninn.model.schedule import FloatArray

RADIUS = 0.5
"""Of the disc around the origin, metres."""

GOAL_RADIUS = 0.05
SECONDS = 3.2


class Problem(NamedTuple):
    """Start and goal, each (2,), metres."""

    start: FloatArray
    goal: FloatArray


def draw_problem(generator: np.random.Generator) -> Problem:
    """A start on the left and a goal on the right of the disc."""
    heights = generator.uniform(-0.3, 0.3, 2)
    return Problem(np.array([-1.0, heights[0]]), np.array([1.0, heights[1]]))


def clearance(path: FloatArray) -> float:
    """Metres between a path (frames, 2) and the disc, along the straight ways between frames.

    >>> round(clearance(np.array([[-1.0, 0.7], [1.0, 0.7]])), 3)
    0.2
    """
    first, along = path[:-1], np.diff(path, axis=0)
    length = np.maximum((along**2).sum(axis=1), 1e-12)
    nearest = np.clip(-(first * along).sum(axis=1) / length, 0.0, 1.0)
    return float(np.linalg.norm(first + nearest[:, None] * along, axis=1).min()) - RADIUS


def succeeds(path: FloatArray, goal: FloatArray) -> bool:
    """Whether a path (frames, 2) ends at its goal without touching the disc."""
    near = float(np.linalg.norm(path[-1] - goal)) <= GOAL_RADIUS
    return near and clearance(path) >= 0.0
