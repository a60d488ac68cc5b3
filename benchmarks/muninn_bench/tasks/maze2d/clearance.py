"""Distance of plans to the maze's walls, many plans at a time, on any device."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn_bench.tasks.maze2d.maze import CELL_SIZE, EXTENT, WALLS

MOST_PIECES = 64  # of a segment; only plans that are already far off have longer ones


def clearance(positions: Tensor, resolution: float = 0.02) -> Tensor:
    """Smallest distance to a wall along each plan, straight segments between frames included.

    Args:
        positions: world positions in metres, (batch, frames, 2).
        resolution: largest distance in metres between two checked points of a segment.

    Returns:
        Metres, (batch,): 0 where a plan enters a wall, at most one cell.
    """
    if positions.ndim != 3 or positions.shape[-1] != 2:
        raise InputError(f"positions must have shape (batch, frames, 2), got {positions.shape}")
    nearest = wall_distance(positions).amin(dim=1)
    longest = float((positions[:, 1:] - positions[:, :-1]).norm(dim=-1).max())
    pieces = min(MOST_PIECES, math.ceil(longest / resolution)) if math.isfinite(longest) else 1
    for piece in range(1, pieces):
        between = torch.lerp(positions[:, :-1], positions[:, 1:], piece / pieces)
        nearest = torch.minimum(nearest, wall_distance(between).amin(dim=1))
    return nearest


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
