"""Distance of plans to the maze's walls, many plans at a time, on any device."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muninn.errors import InputError
from muninn_bench.tasks.maze2d.maze import CELL_SIZE, EXTENT, WALLS

RESOLUTION = 0.02  # largest distance between two checked points of a segment, metres
MOST_PIECES = 64  # of a segment; only plans that are already far off have longer ones


def clearance(positions: Tensor) -> Tensor:
    """Smallest distance to a wall along each plan, straight segments between frames included.

    Plans are (batch, frames, 2) in metres, distances (batch,): 0 where a plan enters a wall, at
    most one cell.
    """
    if positions.ndim != 3 or positions.shape[-1] != 2:
        raise InputError(f"positions must have shape (batch, frames, 2), got {positions.shape}")
    starts, ends = positions[:, :-1], positions[:, 1:]
    longest = float((ends - starts).norm(dim=-1).max())
    pieces = max(1, math.ceil(longest / RESOLUTION)) if math.isfinite(longest) else 1
    pieces = min(pieces, MOST_PIECES)
    shares = torch.arange(pieces).to(positions)[:, None, None, None] / pieces
    points = torch.lerp(starts, ends, shares).transpose(0, 1).flatten(1, 2)
    return wall_distance(torch.cat([points, positions[:, -1:]], dim=1)).amin(dim=1)


def wall_distance(points: Tensor) -> Tensor:
    """Distance in metres from points (..., 2) to the nearest wall, at most one cell."""
    padded = torch.from_numpy(np.pad(WALLS, 2, constant_values=True)).to(points.device)
    across = (points[..., 0] - EXTENT[0]).nan_to_num(-10.0, -10.0, -10.0)
    down = (EXTENT[3] - points[..., 1]).nan_to_num(-10.0, -10.0, -10.0)
    row = down.floor().clamp(-1, WALLS.shape[0])
    column = across.floor().clamp(-1, WALLS.shape[1])
    # Its own cell first: everything outside the grid is wall, however far.
    inside = padded[(row + 2).long(), (column + 2).long()]
    nearest = torch.where(inside, 0.0, torch.full_like(across, CELL_SIZE))
    for row_step in (-1, 0, 1):
        for column_step in (-1, 0, 1):
            top, left = row + row_step, column + column_step
            wall = padded[(top + 2).long(), (left + 2).long()]
            gap_down = torch.maximum(top - down, down - (top + 1)).clamp_min(0.0)
            gap_across = torch.maximum(left - across, across - (left + 1)).clamp_min(0.0)
            gap = torch.hypot(gap_down, gap_across)
            nearest = torch.where(wall, torch.minimum(nearest, gap), nearest)
    return nearest


def plan_is_free(positions: NDArray[np.floating], radius: float = 0.0) -> NDArray[np.bool_]:
    """Whether plans never touch walls inflated by ``radius``, segments between frames included.

    Plans are (horizon, 2), or (batch, horizon, 2) for an answer (batch,), in metres.

    Raises:
        InputError: the shape is neither of the two.
    """
    plan = np.asarray(positions, dtype=np.float64)
    if plan.ndim == 3:
        return np.array([plan_is_free(one, radius) for one in plan], dtype=np.bool_)
    if plan.ndim != 2:
        raise InputError(f"plans must be (horizon, 2) or (batch, horizon, 2), got {plan.shape}")
    room = float(clearance(torch.from_numpy(plan)[None]))
    return np.array(room > 0.0 and room >= radius)
