"""The indoor arena: obstacles, signed distance, and problems (start and goal).

The origin is the middle of the arena, 1 m above the floor, so that plans are centred. All lengths
are metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.paths import resample

HALF_SIZE = np.array([2.5, 2.5, 1.0])
"""The arena is the box of these half sizes; its walls, floor and ceiling count as obstacles."""

BOXES = np.array(
    [
        # centre x, y, z, half sizes
        [-0.9, -1.5, 0.0, 0.15, 1.0, 1.0],  # two walls that reach from one side past the middle
        [0.9, 1.35, 0.0, 0.15, 1.15, 1.0],
        [0.1, -1.4, -0.55, 0.5, 0.4, 0.45],  # low boxes, to fly over
        [1.85, 0.1, -0.45, 0.35, 0.35, 0.55],
        [-0.45, 1.6, 0.55, 0.6, 0.25, 0.45],  # hanging beams, to fly under
        [-1.75, -0.9, 0.5, 0.3, 0.5, 0.5],
    ]
)
CYLINDERS = np.array(
    [
        # x, y, radius: vertical pillars from floor to ceiling
        [-1.6, 0.9, 0.25],
        [0.05, 0.15, 0.3],
        [1.65, -1.35, 0.25],
    ]
)

COLLISION_MARGIN = 0.10
"""Obstacles are inflated by this: 7 cm from the drone's centre to its propeller tips, and 3 cm."""

WORKSPACE_MARGIN = 0.25
"""Clearance of starts and goals, and of the routes in the training data before smoothing."""

SMALLEST_DISTANCE = 1.0  # between start and goal


@dataclass(frozen=True)
class Problem:
    """Where to fly from, at rest, and to; metres, (3,) each."""

    start: FloatArray
    goal: FloatArray


def clearance(points: FloatArray) -> FloatArray:
    """Signed distance to the nearest obstacle or boundary, (..., 3) -> (...); negative inside.

    Exact outside of every obstacle. Inside one it is the distance to that obstacle's surface.
    """
    points = np.asarray(points, dtype=np.float64)
    outside = np.abs(points[..., None, :] - BOXES[:, :3]) - BOXES[:, 3:]
    beyond, inside = np.linalg.norm(np.maximum(outside, 0.0), axis=-1), outside.max(axis=-1)
    boxes = (beyond + np.minimum(inside, 0.0)).min(axis=-1)
    across, along = (points[..., None, axis] - CYLINDERS[:, axis] for axis in (0, 1))
    cylinders = (np.hypot(across, along) - CYLINDERS[:, 2]).min(axis=-1)
    boundary = (HALF_SIZE - np.abs(points)).min(axis=-1)
    return np.asarray(np.minimum(np.minimum(boxes, cylinders), boundary))


def path_clearance(path: FloatArray, spacing: float = 0.02) -> float:
    """Smallest clearance along a polyline (points, 3), checked every ``spacing`` metres."""
    # Vertices too: a corner between two samples is farther out than either.
    return float(clearance(np.concatenate([resample(path, spacing), path])).min())


def draw_place(generator: np.random.Generator, margin: float = WORKSPACE_MARGIN) -> FloatArray:
    """A point drawn uniformly from the free workspace."""
    while True:
        place = generator.uniform(-HALF_SIZE, HALF_SIZE)
        if clearance(place) >= margin:
            return place


def draw_problem(
    generator: np.random.Generator, smallest_distance: float = SMALLEST_DISTANCE
) -> Problem:
    """Start and goal drawn uniformly from the free workspace, not too close to each other."""
    while True:
        start, goal = draw_place(generator), draw_place(generator)
        if np.linalg.norm(goal - start) >= smallest_distance:
            return Problem(start, goal)


def outlines() -> list[FloatArray]:
    """Lines along the edges of the arena and of every obstacle, each (points, 3)."""
    walls = np.concatenate([np.zeros(3), HALF_SIZE])
    lines = [box[:3] + box[3:] * edge for box in (walls, *BOXES) for edge in _EDGES]
    turn = np.linspace(0.0, 2.0 * np.pi, 25)
    height = np.repeat([-HALF_SIZE[2], HALF_SIZE[2]], len(turn))
    for x, y, radius in CYLINDERS:
        circle = np.stack([x + radius * np.cos(turn), y + radius * np.sin(turn)], axis=1)
        lines.append(np.column_stack([np.tile(circle, (2, 1)), height]))
    return lines


_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))
_EDGES = [_CORNERS[[at, at | bit]] for bit in (1, 2, 4) for at in range(8) if not at & bit]
"""Of a cube, each (2, 3)."""
