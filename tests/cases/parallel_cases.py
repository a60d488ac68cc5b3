"""Functions that processes can import: what the tests of the map have done."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor

from muninn.errors import InputError


def slow_first(item: int) -> tuple[int, int]:
    """The square, and the threads it is computed with; 0 takes longest."""
    time.sleep(0.3 if item == 0 else 0.0)
    return item * item, torch.get_num_threads()


def fails_at(place: int, item: int) -> int:
    """The item, but for one."""
    if item == place:
        raise InputError(f"no {item}")
    return item


def process_of(item: int) -> int:
    """Where the item is worked on."""
    return os.getpid()


SCALE = 1.0
"""A setting that a script may change after its imports."""


def scaled(full: Tensor, cached: Tensor) -> Tensor:
    """A metric that reads it."""
    return SCALE * (full - cached).abs().amax(dim=(1, 2))


class Scaled(torch.nn.Module):
    """A network that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """A shrunken state."""
        return SCALE * 0.3 * x
