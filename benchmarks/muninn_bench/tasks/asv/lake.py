"""The lake: shoreline, islands and buoys on one fixed map, and the problems drawn on it.

The map is ours, made to be crossed rarely in a straight line: a shoreline polygon within the
world's radius of 100 m, six islands and ten buoys. It is known to the planner's screen and, through
the buoys, to the filter; the planner itself learned it from data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from muninn.model.schedule import FloatArray

WORLD_RADIUS = 100.0  # metres from the middle of the lake to its farthest shore

SHORE_BUFFER = 4.0
"""Metres from the shoreline in which the vessel may stay for a second at most."""

HULL_RADIUS = 0.9
"""Metres: the disc around a hull of 1.8 m; it touches an obstacle when they are closer."""

GOAL_RADIUS = 6.0
SMALLEST_DISTANCE = 50.0  # metres between start and goal at least

START_RADIUS = 6.0
START_REGIONS = np.array([(-72.0, -34.0), (-16.0, 71.0), (74.0, 25.0), (10.0, -75.0)])
"""Centres of the discs in which episodes begin: four landings, metres."""

_ISLANDS = (
    # centre x, y, half lengths, turn: (m, m, m, m, rad)
    (-34.0, 20.0, 21.0, 12.0, 0.6),
    (30.0, 36.0, 17.0, 12.0, -0.5),
    (4.0, -14.0, 15.0, 13.0, 0.2),
    (-38.0, -48.0, 16.0, 11.0, -0.3),
    (46.0, -30.0, 20.0, 11.0, 1.1),
    (-4.0, 56.0, 9.0, 8.0, 0.0),
)
_BUOYS = (
    (-66.0, 10.0), (-60.0, -12.0), (-14.0, -40.0), (22.0, -52.0), (34.0, 2.0), (62.0, 8.0),
    (-24.0, 44.0), (52.0, 58.0), (-6.0, 20.0), (-40.0, 70.0),
)  # fmt: skip
BUOY_RADIUS = 1.2


@dataclass(frozen=True)
class Polygons:
    """Disjoint simple polygons: the corners of each, in order, (corners, 2), metres."""

    rings: tuple[FloatArray, ...]

    @cached_property
    def _edges(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """First corners and spans of all edges, (edges, 2), and squared lengths, (edges,)."""
        first = np.concatenate(self.rings)
        span = np.concatenate([np.roll(ring, -1, axis=0) for ring in self.rings]) - first
        return first, span, (span * span).sum(axis=1)

    def signed_distance(self, points: FloatArray) -> FloatArray:
        """Metres to the nearest outline, negative inside a polygon: (..., 2) to (...)."""
        first, span, square = self._edges
        away = points[..., None, :] - first
        share = (away[..., 0] * span[:, 0] + away[..., 1] * span[:, 1]) / square
        np.minimum(np.maximum(share, 0.0, out=share), 1.0, out=share)
        x = away[..., 0] - share * span[:, 0]
        y = away[..., 1] - share * span[:, 1]
        distance: FloatArray = np.sqrt((x * x + y * y).min(axis=-1))
        # A ray towards +x meets an odd number of edges from inside. An edge counts if it spans the
        # point's height, with the point on its left as it goes up, or on its right as it goes down.
        beyond = away[..., 1] - span[:, 1]
        upwards = (away[..., 1] >= 0.0) & (beyond < 0.0)
        downwards = (away[..., 1] < 0.0) & (beyond >= 0.0)
        side = span[:, 0] * away[..., 1] - span[:, 1] * away[..., 0]
        crossings = (upwards & (side > 0.0)).sum(axis=-1) + (downwards & (side < 0.0)).sum(axis=-1)
        return np.where(crossings % 2 == 1, -distance, distance)


@dataclass(frozen=True)
class Problem:
    """Where to start, at rest with a heading in radians, and the goal disc's centre, (2,) each."""

    start: FloatArray
    heading: float
    goal: FloatArray


@dataclass(frozen=True)
class Lake:
    """The fixed map; distances are from points (..., 2) in metres.

    The shore is one polygon around the water; the buoys are what LiDAR and camera see.
    """

    shore: Polygons
    islands: Polygons
    buoys: FloatArray  # their centres, (buoys, 2)

    def to_shore(self, points: FloatArray) -> FloatArray:
        """Metres to the shoreline, negative on land: (...)."""
        return -self.shore.signed_distance(points)

    def to_obstacles(self, points: FloatArray) -> FloatArray:
        """Metres to the nearest island or buoy, negative inside one: (...)."""
        away = points[..., None, :] - self.buoys
        buoys = np.hypot(away[..., 0], away[..., 1]).min(axis=-1) - BUOY_RADIUS
        return np.asarray(np.minimum(self.islands.signed_distance(points), buoys))

    def clearance(self, points: FloatArray) -> FloatArray:
        """Metres of free water around the hull, negative where it is a violation: (...).

        The hull keeps its radius from islands and buoys, its middle the buffer from the shore.
        """
        return np.minimum(
            self.to_obstacles(points) - HULL_RADIUS, self.to_shore(points) - SHORE_BUFFER
        )


def _ring(x: float, y: float, long: float, wide: float, turn: float, corners: int) -> FloatArray:
    """An ellipse with three gentle lobes, as a polygon."""
    angle = np.linspace(0.0, 2.0 * math.pi, corners, endpoint=False)
    lobes = 1.0 + 0.08 * np.cos(3.0 * angle + x)
    across, along = wide * lobes * np.sin(angle), long * lobes * np.cos(angle)
    cos, sin = math.cos(turn), math.sin(turn)
    return np.stack([x + cos * along - sin * across, y + sin * along + cos * across], axis=1)


def make_lake() -> Lake:
    """The map of every episode."""
    angle = np.linspace(0.0, 2.0 * math.pi, 72, endpoint=False)
    radius = 1.0 + 0.05 * np.cos(2.0 * angle + 0.5) + 0.035 * np.cos(5.0 * angle + 1.0)
    radius *= WORLD_RADIUS / radius.max()
    shore = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    islands = tuple(_ring(*island, corners=18) for island in _ISLANDS)
    return Lake(Polygons((shore,)), Polygons(islands), np.array(_BUOYS))


def allowed_goal(lake: Lake, points: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool]]:
    """Whether goal discs around the points meet neither the shore's buffer nor an obstacle."""
    return (lake.to_shore(points) >= SHORE_BUFFER + GOAL_RADIUS) & (
        lake.to_obstacles(points) >= GOAL_RADIUS
    )


def draw_problem(lake: Lake, generator: np.random.Generator) -> Problem:
    """A start at rest in a random start region, and a goal anywhere that is far enough away."""
    centre = START_REGIONS[generator.integers(len(START_REGIONS))]
    start = centre + draw_in_disc(generator, START_RADIUS)
    while True:
        goal = draw_in_disc(generator, WORLD_RADIUS)
        far = math.dist(start, goal) >= SMALLEST_DISTANCE
        if far and bool(allowed_goal(lake, goal)):
            return Problem(start, float(generator.uniform(-math.pi, math.pi)), goal)


def draw_in_disc(generator: np.random.Generator, radius: float) -> FloatArray:
    """A point uniformly in a disc around the origin, (2,)."""
    distance = radius * math.sqrt(generator.random())
    angle = generator.uniform(0.0, 2.0 * math.pi)
    return distance * np.array([math.cos(angle), math.sin(angle)])
