"""Sizes and small helpers of the tests of foreign conventions."""

from __future__ import annotations

import torch
from torch import Tensor

BATCH, HORIZON, ACTION, STATE = 3, 8, 2, 4
SIZE = ACTION + STATE


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)  # tells -0.0 from 0.0


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
