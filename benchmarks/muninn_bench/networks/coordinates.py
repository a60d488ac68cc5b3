"""Coordinates that a network works in: affine per channel, ``[low, high]`` at ``[-1, 1]``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from muninn.errors import InputError


def normalised(world: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Values with ``[low, high]`` mapped to ``[-1, 1]``, channels last."""
    return 2.0 * (world - low) / (high - low) - 1.0


@dataclass(frozen=True)
class Coordinates:
    """World values that become -1 and +1, ``(channels,)`` each."""

    low: Tensor
    high: Tensor

    def normalise(self, world: Tensor) -> Tensor:
        """Map ``[low, high]`` to ``[-1, 1]``; the last axis: all channels, or the first few."""
        low, high = self._limits(world)
        return normalised(world, low, high)

    def unnormalise(self, plan: Tensor) -> Tensor:
        """Map ``[-1, 1]`` to ``[low, high]``; the last axis: all channels, or the first few."""
        low, high = self._limits(plan)
        return (plan + 1.0) / 2.0 * (high - low) + low

    def after(self, first: int) -> Coordinates:
        """Those of the channels from ``first`` on."""
        return Coordinates(self.low[first:], self.high[first:])

    def _limits(self, values: Tensor) -> tuple[Tensor, Tensor]:
        count = values.shape[-1]
        if count > len(self.low):
            raise InputError(f"a plan has {len(self.low)} channels, got {count}")
        return self.low[:count].to(values.device), self.high[:count].to(values.device)


LEAST_HALF_WIDTH = 0.01
"""Of the range of a channel, in world units: one that never moves would be nothing but noise."""


def range_coordinates(frames: Tensor) -> Coordinates:
    """The smallest and largest value of each channel at -1 and 1; frames are (frames, channels)."""
    low, high = frames.amin(dim=0), frames.amax(dim=0)
    middle, half = (low + high) / 2.0, ((high - low) / 2.0).clamp_min(LEAST_HALF_WIDTH)
    return Coordinates(middle - half, middle + half)


def standard_coordinates(frames: Tensor) -> Coordinates:
    """One standard deviation from the mean of each channel at -1 and 1."""
    mean = frames.double().mean(dim=0)
    spread = frames.double().std(dim=0, correction=0).clamp_min(LEAST_HALF_WIDTH)
    return Coordinates((mean - spread).float(), (mean + spread).float())


def joined(first: Coordinates, second: Coordinates) -> Coordinates:
    """Channels of the first, then of the second."""
    return Coordinates(torch.cat([first.low, second.low]), torch.cat([first.high, second.high]))
