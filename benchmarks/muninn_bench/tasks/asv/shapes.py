"""Signed distances to polygons and discs, for many points at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Polygons:
    """Disjoint simple polygons.

    Attributes:
        rings: corners of each, in order, (corners, 2), metres.
    """

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
class Discs:
    """Discs in the plane.

    Attributes:
        centres: (discs, 2), metres.
        radii: (discs,), metres.
    """

    centres: FloatArray
    radii: FloatArray

    def signed_distance(self, points: FloatArray) -> FloatArray:
        """Metres to the nearest disc, negative inside one: (..., 2) to (...)."""
        away = points[..., None, :] - self.centres
        distance: FloatArray = np.hypot(away[..., 0], away[..., 1]) - self.radii
        nearest: FloatArray = distance.min(axis=-1)
        return nearest
