"""Geometric routes become timed runs: rounded in space, then in time, within bounds.

A route is a polyline of metres, (points, 3). A run is positions and velocities at equal times,
(frames, 6), from rest to rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

FRAME_SECONDS = 0.1
"""Between two frames of a run, and of a plan."""

HORIZON = 72
"""Frames of a plan. A run that does not fit, one in a hundred, is not recorded."""

TOP_SPEED = 1.8
"""Largest speed of a run, m/s."""

TOP_ACCELERATION = 2.5
"""Largest acceleration of a run along and, separately, across its path, m/s^2."""

CORNER_ROUNDING = 0.12
"""Standard deviation of the Gaussian that rounds corners, metres of path."""

TIME_ROUNDING = 0.06
"""Standard deviation of the Gaussian that rounds the run in time, seconds."""

_ARC_STEP = 0.01
_TIME_STEP = 0.01


def rounded(route: FloatArray) -> FloatArray:
    """The route with rounded corners, at equal spacing; both ends stay in place."""
    path = resample(route, _ARC_STEP)
    return resample(_smooth(path, CORNER_ROUNDING / _ARC_STEP), _ARC_STEP)


def timed(path: FloatArray) -> FloatArray:
    """A run along a rounded path, as fast as the bounds allow: (frames, 6).

    The first and the last frame are at rest on the path's ends.
    """
    times = _passing_times(path)
    clock = np.arange(0.0, times[-1] + _TIME_STEP, _TIME_STEP)
    position = np.stack([np.interp(clock, times, path[:, axis]) for axis in range(3)], axis=1)
    # Rest before and after lets the rounding in time start and end at rest, exactly in place.
    sigma = TIME_ROUNDING / _TIME_STEP
    rest = int(np.ceil(3 * sigma))
    position = np.concatenate(
        [np.repeat(position[:1], rest, 0), position, np.repeat(path[-1:], rest, 0)]
    )
    position = _smooth(position, sigma)
    velocity = np.gradient(position, _TIME_STEP, axis=0)
    velocity[[0, -1]] = 0.0
    stride = round(FRAME_SECONDS / _TIME_STEP)
    frames = np.concatenate([position, velocity], axis=1)[::stride]
    last = np.concatenate([path[-1], np.zeros(3)])
    return np.concatenate([frames, last[None]])


def resample(path: FloatArray, spacing: float) -> FloatArray:
    """The polyline at equal arc lengths of about ``spacing``."""
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    # Three at least: a point in the middle is where the speed is not zero.
    count = max(3, int(np.ceil(lengths[-1] / spacing)) + 1)
    at = np.linspace(0.0, lengths[-1], count)
    return np.stack([np.interp(at, lengths, path[:, axis]) for axis in range(3)], axis=1)


def _smooth(path: FloatArray, sigma: float) -> FloatArray:
    """The path under a Gaussian of ``sigma`` samples; odd reflection keeps both ends."""
    reach = min(int(np.ceil(3 * sigma)), len(path) - 1)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    before = 2 * path[:1] - path[reach:0:-1]
    after = 2 * path[-1:] - path[-2 : -reach - 2 : -1]
    padded = np.concatenate([before, path, after])
    return np.stack([np.convolve(padded[:, axis], weights, "valid") for axis in range(3)], axis=1)


def _passing_times(path: FloatArray) -> FloatArray:
    """When each path point is passed, fastest within the bounds on speed and acceleration."""
    spacing = max(float(np.linalg.norm(np.diff(path, axis=0), axis=1).mean()), 1e-9)
    tangent = np.gradient(path, spacing, axis=0)
    bend = np.linalg.norm(np.gradient(tangent, spacing, axis=0), axis=1)
    squared = np.minimum(TOP_SPEED**2, TOP_ACCELERATION / np.maximum(bend, 1e-9))
    squared[[0, -1]] = 0.0
    gain = 2.0 * TOP_ACCELERATION * spacing
    for index in range(1, len(squared)):
        squared[index] = min(squared[index], squared[index - 1] + gain)
    for index in range(len(squared) - 2, -1, -1):
        squared[index] = min(squared[index], squared[index + 1] + gain)
    speed = np.sqrt(squared)
    # Between neighbours speed squared is linear, so the mean speed is the mean of the two speeds.
    return np.concatenate([[0.0], np.cumsum(2.0 * spacing / (speed[1:] + speed[:-1]))])
