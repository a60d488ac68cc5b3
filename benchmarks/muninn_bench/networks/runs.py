"""Recorded runs of different lengths: what planners are trained on, in one file and as windows.

Frames begin with a position, then the rest of the state, then whatever else a plan holds. Start and
goal states are inpainted into plans; a goal is a position at rest, so the state channels after the
position are zero there.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muninn.errors import InputError
from muninn.files import write_whole
from muninn_bench.networks.coordinates import normalised


@dataclass(frozen=True)
class Runs:
    """Runs one after another, each ending at its goal."""

    frames: NDArray[np.float32]  # world units, (total frames, channels)
    offsets: NDArray[np.int64]  # first frame of each run and the total, (runs + 1,)
    frame_seconds: float  # between two frames
    position_channels: int  # leading channels that are a position
    state_channels: int  # leading channels that are inpainted at start and goal


_SCALARS = ("frame_seconds", "position_channels", "state_channels")


def save_runs(path: Path, runs: Runs) -> None:
    """Write runs as 16-bit shares of each channel's largest value, differenced along time.

    Differences wrap around in 16 bits and are undone exactly by a wrapping cumulative sum; they
    compress well, because neighbouring frames are alike.

    Raises:
        InputError: a value is not finite.
    """
    if not np.isfinite(runs.frames).all():
        bad = int(np.flatnonzero(~np.isfinite(runs.frames).all(axis=0))[0])
        raise InputError(
            f"channel {bad} of the runs holds values that are not finite; record them again, or "
            "leave out the run that holds them"
        )
    largest = np.maximum(np.abs(runs.frames).max(axis=0).astype(np.float64), 1e-12)
    codes = np.round(runs.frames / largest * 32767.0).astype(np.int16)
    codes[1:] = np.diff(codes, axis=0)
    store = partial(
        np.savez_compressed,
        differences=np.ascontiguousarray(codes.T),
        largest=largest,
        offsets=runs.offsets,
        **{name: getattr(runs, name) for name in _SCALARS},
    )
    write_whole(path, store)


def load_runs(path: Path) -> Runs:
    """Read a file written by :func:`save_runs`.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it was cut short, or holds something else.
    """
    if not path.exists():
        raise FileNotFoundError(f"no runs at {path}; record them with the data module of the task")
    try:
        with np.load(path) as stored:
            if "differences" not in stored:
                raise InputError(
                    f"{path} is not a file of runs: it holds {', '.join(stored.files)}; record one "
                    "with the platform's data module"
                )
            codes = np.cumsum(stored["differences"], axis=1, dtype=np.int16)
            return Runs(
                frames=(codes.T / 32767.0 * stored["largest"]).astype(np.float32),
                offsets=stored["offsets"],
                **{name: stored[name].item() for name in _SCALARS},
            )
    except (BadZipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read ({error}); it was cut short: record it again, which takes up "
            "the parts that are finished"
        ) from error


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
