"""Functions that processes can import: what the tests of the map have done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from certify_cases import drive
from muninn.errors import InputError
from muninn.files import write_whole


def total(item: dict[int, Tensor]) -> float:
    """The sum of some tensors."""
    return sum(float(tensor.sum()) for tensor in item.values())


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


class Travelling:
    """Returns items, and counts how often it was sent."""

    def __init__(self) -> None:
        self.departures = 0

    def __getstate__(self) -> dict[str, int]:
        self.departures += 1
        return vars(self)

    def __call__(self, item: int) -> int:
        return item


class Absent:
    """A worker whose module is not where Ray's workers look for modules."""

    def ready(self) -> None:
        """Never runs."""


class Killable:
    """An episode's driver; the first that is driven in another process waits there to be killed.

    That process writes its number to ``victim`` in a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.victim, self.home = str(folder / "victim"), os.getpid()

    def __call__(self, plan: Callable[[Tensor], Tensor], seed: int) -> None:
        """One episode."""
        if os.getpid() != self.home and not os.path.exists(self.victim):
            write_whole(self.victim, str(os.getpid()))
            time.sleep(600.0)
        drive(plan, seed)


SCALE = 1.0
"""A setting that a script may change after its imports."""


def scaled(full: Tensor, cached: Tensor) -> Tensor:
    """A metric that reads it."""
    return SCALE * (full - cached).abs().amax(dim=(1, 2))


def paused(full: Tensor, cached: Tensor) -> Tensor:
    """A metric that takes as many seconds as the environment says."""
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return (full - cached).abs().amax(dim=(1, 2))


class Scaled(torch.nn.Module):
    """A network that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """A shrunken state."""
        return SCALE * 0.3 * x
