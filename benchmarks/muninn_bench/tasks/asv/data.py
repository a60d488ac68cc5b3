"""The vessel's training data.

A run leads from anywhere on the water to an allowed goal, at rest there, and its frames
are ``(x, y, vx, vy)`` every second. Half of the runs begin on the way of a route, at speed,
because a receding-horizon planner mostly starts there; and every run begins with a velocity a
little off its route's, which dies out within seconds, because a vessel in wind and current does.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.asv.lake import WORLD_RADIUS, Lake, allowed_goal, draw_in_disc, make_lake
from muninn_bench.tasks.asv.reference import FRAME_SECONDS, HORIZON
from muninn_bench.tasks.asv.routes import Router, Timed
from muninn_bench.tasks.recorded import Recording

TOP_SPEED = 2.2
"""Metres per second that no frame exceeds, the velocity error at the start included."""

SMALLEST_CLEARANCE = 0.5
"""Metres that every frame of every run keeps beyond hull and buffer."""

_KICK, _KICK_SECONDS = 0.4, 3.0
_START_CLEARANCE, _START_DISTANCE = 1.0, 6.0


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
        begin = generator.uniform(0.0, 0.9 * route.times[-1]) if generator.random() < 0.5 else 0.0
        frames = sample_frames(route, begin, draw_in_disc(generator, _KICK))
        if (
            len(frames) <= HORIZON
            and np.hypot(frames[:, 2], frames[:, 3]).max() <= TOP_SPEED
            and lake.clearance(frames[:, :2]).min() >= SMALLEST_CLEARANCE
        ):
            return [frames]


def sample_frames(route: Timed, begin: float, kick: FloatArray) -> FloatArray:
    """Frames of a route from a time on, with a velocity error that dies out.

    The error ``kick`` of the first velocity displaces the run by ``kick t exp(-t / 3 s)``: zero at
    its start, and again after some ten seconds.
    """
    remaining = route.times[-1] - begin
    after = np.arange(0.0, remaining, FRAME_SECONDS)
    curve = CubicHermiteSpline(route.times, route.positions, route.velocities)
    frames = np.empty((len(after) + 1, 4))
    frames[:-1, :2], frames[:-1, 2:] = curve(begin + after), curve(begin + after, 1)
    # Faded with the time left as well, so that a short run still ends on its goal.
    fade = np.exp(-after / _KICK_SECONDS)
    left = 1.0 - after / remaining
    frames[:-1, :2] += kick * (after * fade * left)[:, None]
    frames[:-1, 2:] += (
        kick * (fade * (left * (1.0 - after / _KICK_SECONDS) - after / remaining))[:, None]
    )
    frames[-1] = *route.positions[-1], 0.0, 0.0
    return frames


RECORDING = Recording("asv", make_runs, 40_000, FRAME_SECONDS, 2, 4)
