"""Training windows: fixed-length plans cut from runs of different lengths."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn_bench.networks.runs import Runs
from muninn_bench.networks.teacher import normalised


class PlanSource:
    """All runs on the device, ``low`` and ``high`` at -1 and 1; draws windows held at the goal."""

    def __init__(
        self, runs: Runs, low: Tensor, high: Tensor, horizon: int, device: torch.device
    ) -> None:
        frames = torch.from_numpy(runs.frames).clone()
        # A run ends at rest: what is left of speed and force there is noise of the controller.
        frames[torch.from_numpy(runs.offsets[1:]) - 1, runs.position_channels :] = 0.0
        self._frames = normalised(frames, low, high).to(device)
        self._first = torch.from_numpy(runs.offsets[:-1]).to(device)
        self._length = torch.from_numpy(np.diff(runs.offsets)).to(device)
        self._ahead = torch.arange(horizon, device=device)

    def draw(self, count: int, whole_share: float, generator: torch.Generator) -> Tensor:
        """Windows ``(count, horizon, channels)``, each held at its run's last frame."""
        device = self._frames.device
        uniform = torch.rand(3, count, generator=generator, device=device)
        run = (uniform[0] * len(self._first)).long()
        length = self._length[run]
        begin = (uniform[2] * (length - 1)).long().where(uniform[1] >= whole_share, 0)
        frame = torch.minimum(begin[:, None] + self._ahead, length[:, None] - 1)
        return self._frames[self._first[run][:, None] + frame]


def symmetric_limits(runs: Runs) -> tuple[Tensor, Tensor]:
    """Limits per channel, ``(-m, m)``: rest becomes exactly zero."""
    largest = torch.from_numpy(np.abs(runs.frames).max(axis=0))
    return -largest, largest


def standard_limits(runs: Runs) -> tuple[Tensor, Tensor]:
    """Limits per channel, ``(mean - std, mean + std)``: -1 and 1 are one deviation away."""
    frames = runs.frames.astype(np.float64)
    mean, spread = frames.mean(axis=0), frames.std(axis=0)
    return torch.from_numpy(mean - spread).float(), torch.from_numpy(mean + spread).float()


def largest_value(runs: Runs, low: Tensor, high: Tensor) -> float:
    """The largest ``|value|`` of normalised frames, rounded up to a tenth."""
    frames = torch.from_numpy(runs.frames)
    largest = float(normalised(frames, low, high).abs().max())
    return math.ceil(10.0 * largest) / 10.0


def split_runs(runs: Runs, validation_share: float) -> tuple[Runs, Runs]:
    """Split off the last runs for validation; at least one run stays on either side."""
    count = len(runs.offsets) - 1
    if count < 2:
        raise InputError(f"training needs at least 2 runs, got {count}")
    kept = count - min(max(1, round(count * validation_share)), count - 1)
    boundary = int(runs.offsets[kept])
    return (
        replace(runs, frames=runs.frames[:boundary], offsets=runs.offsets[: kept + 1]),
        replace(runs, frames=runs.frames[boundary:], offsets=runs.offsets[kept:] - boundary),
    )
