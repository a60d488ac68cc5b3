"""The places that a plan's positions and velocities agree on."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solveh_banded

from muninn.model.schedule import FloatArray

FIT = 36.0
"""How much more exact a plan's velocities are, times the time between frames, than its positions:
six times, squared."""


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
