"""What the tests of the maze ask of its walls."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from muninn_bench.tasks.maze2d.clearance import wall_distance


def inside_walls(positions: NDArray[np.floating], radius: float = 0.0) -> NDArray[np.bool_]:
    """Whether a wall holds or touches positions (..., 2), or is nearer than ``radius``, metres."""
    distance = wall_distance(torch.from_numpy(np.asarray(positions, dtype=np.float64))).numpy()
    return np.asarray((distance < radius) | (distance == 0.0))
