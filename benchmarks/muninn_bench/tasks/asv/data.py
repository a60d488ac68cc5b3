"""The vessel's training data: routes over the lake, and runs along them.

A route is a random cheap grid path, pulled straight, rounded, and timed. Costs are multiplied by a
smooth random field before the search, so that two ways round an island are both taken where they
are about as long; pulling straight then forgets the field.

A run leads from anywhere on the water to an allowed goal, at rest there, and its frames
are ``(x, y, vx, vy)`` every second. Half of the runs begin on the way of a route, at speed,
because a receding-horizon planner mostly starts there; and every run begins with a velocity a
little off its route's, which dies out within seconds, because a vessel in wind and current does.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.interpolate import CubicHermiteSpline, CubicSpline
from scipy.ndimage import map_coordinates
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import cKDTree

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.asv.controller import FRAME_SECONDS, HORIZON
from muninn_bench.tasks.asv.lake import WORLD_RADIUS, Lake, allowed_goal, draw_in_disc, make_lake
from muninn_bench.tasks.paths import arc_lengths, resample
from muninn_bench.tasks.recorded import Recording

TOP_SPEED = 2.2
"""Metres per second that no frame exceeds, the velocity error at the start included."""

SMALLEST_CLEARANCE = 0.5
"""Metres that every frame of every run keeps beyond hull and buffer."""

_KICK, _KICK_SECONDS = 0.4, 3.0
_START_CLEARANCE, _START_DISTANCE = 1.0, 6.0

CRUISE = 1.8
"""Metres per second; against a current it leaves the vessel a quarter of its thrust to steer."""

ACCELERATION = 0.3
TURN_RATE = 0.3
MARGIN = 3.0
"""Metres of clearance that routes keep, but for the first metres of one that starts closer."""

_CELL, _FIELD_CELL, _SPACING, _FINE = 2.0, 1.0, 1.0, 0.2
_ROUNDS = 120


class Router:
    """Finds routes on one lake; distances come from a field sampled every metre."""

    def __init__(self, lake: Lake) -> None:
        reach = WORLD_RADIUS + 10.0
        self._origin = -reach
        line = np.arange(-reach, reach + _FIELD_CELL, _FIELD_CELL)
        rows = [lake.clearance(np.stack([np.full_like(line, x), line], axis=1)) for x in line]
        self._field = np.array(rows)
        slopes = [np.gradient(self._field, _FIELD_CELL, axis=axis) for axis in (0, 1)]
        self._slope = np.stack(slopes, axis=-1)
        cells = np.arange(-WORLD_RADIUS, WORLD_RADIUS + _CELL, _CELL)
        grid = np.moveaxis(np.array(np.meshgrid(cells, cells, indexing="ij")), 0, -1)
        clearance = self.clearance(grid)
        inside = clearance >= 0.5
        self.nodes: FloatArray = grid[inside]
        self._price = np.where(clearance[inside] >= MARGIN, 1.0, 10.0)
        ends = cKDTree(self.nodes).query_pairs(2.3 * _CELL, output_type="ndarray")
        length = np.linalg.norm(self.nodes[ends[:, 0]] - self.nodes[ends[:, 1]], axis=1)
        near = np.abs(length / _CELL - 2.0) > 0.1  # two cells straight on are two steps
        (self._first, self._second), self._length = ends[near].T, length[near]

    def clearance(self, points: FloatArray) -> FloatArray:
        """Of points (..., 2), from the field: within a decimetre of the exact one."""
        place = np.moveaxis((points - self._origin) / _FIELD_CELL, -1, 0)
        return np.asarray(map_coordinates(self._field, place, order=1, mode="nearest"))

    def route(
        self, start: FloatArray, goal: FloatArray, generator: np.random.Generator
    ) -> CubicHermiteSpline | None:
        """Places on the clock, from 0 s, at rest at both ends; None if too close to land."""
        band = self._round(self._pull(self._search(start, goal, generator)))
        away = np.hypot(*(band - start).T) > 15.0
        clearance = self.clearance(band)
        if clearance.min() < 0.9 or (away.any() and clearance[away].min() < MARGIN - 0.3):
            return None
        return _time(band)

    def _search(
        self, start: FloatArray, goal: FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        """The cheapest path over the grid under a random smooth price, (points, 2)."""
        waves = generator.normal(0.0, 1.0 / 30.0, (2, 6))
        field = np.cos(self.nodes @ waves + generator.uniform(0.0, 2.0 * math.pi, 6)).sum(axis=1)
        price = self._price * np.exp(0.05 * field)
        cost = self._length * (price[self._first] + price[self._second])
        graph = csr_array((cost, (self._first, self._second)), shape=(len(price),) * 2)
        begin, end = (int(np.hypot(*(self.nodes - point).T).argmin()) for point in (start, goal))
        _, before = dijkstra(graph, directed=False, indices=begin, return_predecessors=True)
        path = [end]
        while path[-1] != begin:
            path.append(int(before[path[-1]]))
        inner = self.nodes[path[-2:0:-1]]
        return np.concatenate([start[None], inner, goal[None]])

    def _pull(self, path: FloatArray) -> FloatArray:
        """Keep only corners: from each point on to the last one in sight."""
        corners = [0]
        share = np.linspace(0.0, 1.0, 80)[:, None, None]
        while corners[-1] < len(path) - 1:
            here, ahead = path[corners[-1]], path[corners[-1] + 1 :]
            clear = self.clearance(here + share * (ahead - here)).min(axis=0) >= MARGIN
            seen = np.flatnonzero(clear)
            corners.append(corners[-1] + 1 + (int(seen[-1]) if len(seen) else 0))
        return path[corners]

    def _round(self, corners: FloatArray) -> FloatArray:
        """An elastic band from the corners: contracted, and pushed out of the margin."""
        band = resample(corners, _SPACING, 5)
        for _ in range(_ROUNDS):
            band[1:-1] += 0.5 * (0.5 * (band[:-2] + band[2:]) - band[1:-1])
            inner = band[1:-1]
            lack = np.maximum(MARGIN + 0.1 - self.clearance(inner), 0.0)
            if lack.any():
                i, j = np.round((inner - self._origin) / _FIELD_CELL).astype(np.int64).T
                # A limit on the push keeps a band that starts inside the margin smooth.
                inner += np.minimum(lack, 0.3)[:, None] * self._slope[i, j]
        return band


def _time(band: FloatArray) -> CubicHermiteSpline:
    """Speeds along a band: the cruise, the turn rate and the acceleration each bound them."""
    knots = arc_lengths(band)
    curve = CubicSpline(knots, band)
    at = np.linspace(0.0, knots[-1], math.ceil(knots[-1] / _FINE) + 1)
    tangent, bend = curve(at, 1), curve(at, 2)
    stretch = np.hypot(*tangent.T)
    curvature = np.abs(tangent[:, 0] * bend[:, 1] - tangent[:, 1] * bend[:, 0]) / stretch**3
    step = at[1] - at[0]
    square = np.minimum(CRUISE, TURN_RATE / np.maximum(curvature, 1e-9)) ** 2
    square[0] = square[-1] = 0.0
    gain = 2.0 * ACCELERATION * step
    # A bound that grows by `gain` per point, both ways: a running minimum of the sheared speeds.
    shear = gain * np.arange(len(at))
    square = np.minimum.accumulate(square - shear) + shear
    square = (np.minimum.accumulate((square + shear)[::-1]) - shear[::-1])[::-1]
    speed = np.sqrt(np.maximum(square, 0.0))
    times = np.concatenate([[0.0], np.cumsum(2.0 * step / (speed[1:] + speed[:-1]))])
    return CubicHermiteSpline(times, curve(at), tangent / stretch[:, None] * speed[:, None])


@cache
def _router() -> tuple[Lake, Router]:
    """Built once per process: the distance field takes half a second."""
    lake = make_lake()
    return lake, Router(lake)


def make_runs(seed: int, index: int) -> list[FloatArray]:
    """The one run of an index: frames (frames, 4), the last one at rest on the goal."""
    generator = np.random.default_rng([seed, index])
    lake, router = _router()
    while True:
        start, goal = (draw_in_disc(generator, WORLD_RADIUS) for _ in range(2))
        if math.dist(start, goal) < _START_DISTANCE or not allowed_goal(lake, goal):
            continue
        if lake.clearance(start) < _START_CLEARANCE:
            continue
        route = router.route(start, goal, generator)
        if route is None:
            continue
        begin = generator.uniform(0.0, 0.9 * route.x[-1]) if generator.random() < 0.5 else 0.0
        frames = sample_frames(route, begin, draw_in_disc(generator, _KICK))
        if (
            len(frames) <= HORIZON
            and np.hypot(frames[:, 2], frames[:, 3]).max() <= TOP_SPEED
            and lake.clearance(frames[:, :2]).min() >= SMALLEST_CLEARANCE
        ):
            return [frames]


def sample_frames(route: CubicHermiteSpline, begin: float, kick: FloatArray) -> FloatArray:
    """Frames of a route from a time on, with a velocity error that dies out.

    The error ``kick`` of the first velocity displaces the run by ``kick t exp(-t / 3 s)``: zero at
    its start, and again after some ten seconds.
    """
    remaining = route.x[-1] - begin
    after = np.arange(0.0, remaining, FRAME_SECONDS)
    frames = np.empty((len(after) + 1, 4))
    frames[:-1, :2], frames[:-1, 2:] = route(begin + after), route(begin + after, 1)
    # Faded with the time left as well, so that a short run still ends on its goal.
    fade = np.exp(-after / _KICK_SECONDS)
    left = 1.0 - after / remaining
    frames[:-1, :2] += kick * (after * fade * left)[:, None]
    frames[:-1, 2:] += (
        kick * (fade * (left * (1.0 - after / _KICK_SECONDS) - after / remaining))[:, None]
    )
    frames[-1] = *route(route.x[-1]), 0.0, 0.0
    return frames


RECORDING = Recording("asv", make_runs, 40_000, FRAME_SECONDS, 2, 4)
