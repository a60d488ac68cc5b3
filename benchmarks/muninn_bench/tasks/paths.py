"""Polylines (points, dim): equally spaced, rounded, timed within bounds, fitted to velocities."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solveh_banded

from muninn.model.schedule import FloatArray

FIT = 36.0
"""How much more exact a plan's velocities are, times the time between frames, than its positions:
six times, squared."""


def arc_lengths(path: FloatArray) -> FloatArray:
    """From the first point to each, along the polyline, (points,)."""
    return np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])


def resample(path: FloatArray, spacing: float, least: int = 2) -> FloatArray:
    """The polyline at equal arc lengths of about ``spacing``, at least so many points."""
    lengths = arc_lengths(path)
    count = max(least, int(np.ceil(lengths[-1] / spacing)) + 1)
    at = np.linspace(0.0, lengths[-1], count)
    return np.stack([np.interp(at, lengths, column) for column in path.T], axis=1)


def gaussian(sigma: float, reach: int | None = None) -> FloatArray:
    """Gaussian weights of ``sigma`` samples that sum to one, cut at ``reach``, or 3 sigma."""
    reach = int(np.ceil(3 * sigma)) if reach is None else reach
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    return np.asarray(weights / weights.sum())


def smooth(path: FloatArray, sigma: float) -> FloatArray:
    """The path under a Gaussian of ``sigma`` samples; odd reflection keeps both ends."""
    reach = min(int(np.ceil(3 * sigma)), len(path) - 1)
    padded = np.pad(path, ((reach, reach), (0, 0)), mode="reflect", reflect_type="odd")
    weights = gaussian(sigma, reach)
    return np.stack([np.convolve(column, weights, "valid") for column in padded.T], axis=1)


def timed(
    path: FloatArray, top_speed: float, turning: float, driving: float, step: float, sigma: float
) -> FloatArray:
    """Positions every ``step`` seconds of the fastest run along an evenly spaced path.

    The run is at rest at both ends, exactly in place, and rounded in time by a Gaussian of
    ``sigma`` seconds. Accelerations are at most ``turning`` across and ``driving`` along the path.
    All in metres and seconds.
    """
    spacing = max(float(np.linalg.norm(np.diff(path, axis=0), axis=1).mean()), 1e-9)
    tangent = np.gradient(path, spacing, axis=0)
    bend = np.linalg.norm(np.gradient(tangent, spacing, axis=0), axis=1)
    squared = np.minimum(top_speed**2, turning / np.maximum(bend, 1e-9))
    squared[[0, -1]] = 0.0
    gain = 2.0 * driving * spacing
    for index in range(1, len(squared)):
        squared[index] = min(squared[index], squared[index - 1] + gain)
    for index in range(len(squared) - 2, -1, -1):
        squared[index] = min(squared[index], squared[index + 1] + gain)
    speed = np.sqrt(squared)
    # Between neighbours speed squared is linear, so the mean speed is the mean of the two speeds.
    times = np.concatenate([[0.0], np.cumsum(2.0 * spacing / (speed[1:] + speed[:-1]))])
    clock = np.arange(0.0, times[-1] + step, step)
    position = np.stack([np.interp(clock, times, column) for column in path.T], axis=1)
    # Rest before and after lets the rounding in time start and end at rest, exactly in place.
    width = sigma / step
    rest = int(np.ceil(3 * width))
    ends = np.repeat(path[:1], rest, 0), np.repeat(path[-1:], rest, 0)
    return smooth(np.concatenate([ends[0], position, ends[1]]), width)


def fitted(positions: FloatArray, velocities: FloatArray, frame_seconds: float) -> FloatArray:
    """Places along a plan, (frames, dim), for a curve that has its velocities.

    A plan's velocities are more exact than the differences of its positions: an error of a
    centimetre between frames a tenth of a second apart is a tenth of a metre per second, which a
    new plan in every period makes a random walk of. The places ``p`` fit both best:
    ``sum |p[k] - positions[k]|^2 + FIT sum |p[k+1] - p[k] - moved[k]|^2`` is least, ``moved`` being
    the way at the velocities' mean, and the first place is kept.

    >>> fitted(np.array([[0.0], [1.3], [2.0]]), np.ones((3, 1)), 1.0).round(2).T
    array([[0.  , 1.01, 2.01]])
    """
    moved = frame_seconds * (velocities[1:] + velocities[:-1]) / 2.0
    bands = np.zeros((2, len(moved)))
    bands[0, 1:], bands[1], bands[1, -1] = -FIT, 1.0 + 2.0 * FIT, 1.0 + FIT
    wanted = positions[1:] + FIT * moved
    wanted[:-1] -= FIT * moved[1:]
    wanted[0] += FIT * positions[0]
    return np.concatenate([positions[:1], solveh_banded(bands, wanted)])
