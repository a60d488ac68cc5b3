"""Geometric routes become timed runs: rounded in space, then in time, within bounds.

A route is a polyline of metres, (points, 3). A run is positions and velocities at equal times,
(frames, 6), from rest to rest.
"""

from __future__ import annotations

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.paths import resample, smooth
from muninn_bench.tasks.paths import timed as fastest

FRAME_SECONDS = 0.1  # between two frames of a run, and of a plan
HORIZON = 72  # frames of a plan; a run that does not fit, one in a hundred, is not recorded
TOP_SPEED = 1.8  # of a run, m/s
TOP_ACCELERATION = 2.5  # of a run along and, separately, across its path, m/s^2
CORNER_ROUNDING = 0.12  # standard deviation of the Gaussian along the path, metres
TIME_ROUNDING = 0.06  # standard deviation of the Gaussian in time, seconds
_ARC_STEP = 0.01
_TIME_STEP = 0.01


def rounded(route: FloatArray) -> FloatArray:
    """The route with rounded corners, at equal spacing; both ends stay in place."""
    path = smooth(resample(route, _ARC_STEP, 3), CORNER_ROUNDING / _ARC_STEP)
    # Three at least: a point in the middle is where the speed is not zero.
    return resample(path, _ARC_STEP, 3)


def timed(path: FloatArray) -> FloatArray:
    """A run along a rounded path, as fast as the bounds allow: (frames, 6).

    The first and the last frame are at rest on the path's ends.
    """
    bounds = (TOP_SPEED, TOP_ACCELERATION, TOP_ACCELERATION)
    position = fastest(path, *bounds, _TIME_STEP, TIME_ROUNDING)
    velocity = np.gradient(position, _TIME_STEP, axis=0)
    velocity[[0, -1]] = 0.0
    frames = np.concatenate([position, velocity], axis=1)[:: round(FRAME_SECONDS / _TIME_STEP)]
    return np.concatenate([frames, [[*path[-1], 0.0, 0.0, 0.0]]])
