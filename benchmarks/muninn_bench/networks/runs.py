"""Recorded runs of different lengths: what planners are trained on, in memory and in one file.

Frames begin with a position, then the rest of the state, then whatever else a plan holds. Start and
goal states are inpainted into plans; a goal is a position at rest, so the state channels after the
position are zero there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muninn.errors import InputError
from muninn.files import write_whole


@dataclass(frozen=True)
class Runs:
    """Runs one after another, each ending at its goal."""

    frames: NDArray[np.float32]  # world units, (total frames, channels)
    offsets: NDArray[np.int64]  # first frame of each run and the total, (runs + 1,)
    frame_seconds: float  # between two frames
    position_channels: int  # leading channels that are a position
    state_channels: int  # leading channels that are inpainted at start and goal


def save_runs(path: Path, runs: Runs) -> None:
    """Write runs as 16-bit shares of each channel's largest value, differenced along time.

    Differences wrap around in 16 bits and are undone exactly by a wrapping cumulative sum; they
    compress well, because neighbouring frames are alike.
    """
    largest = np.maximum(np.abs(runs.frames).max(axis=0).astype(np.float64), 1e-12)
    codes = np.round(runs.frames / largest * 32767.0).astype(np.int16)
    codes[1:] = np.diff(codes, axis=0)
    store = partial(
        np.savez_compressed,
        differences=np.ascontiguousarray(codes.T),
        largest=largest,
        offsets=runs.offsets,
        frame_seconds=runs.frame_seconds,
        position_channels=runs.position_channels,
        state_channels=runs.state_channels,
    )
    write_whole(path, store)


def load_runs(path: Path) -> Runs:
    """Read a file written by :func:`save_runs`.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it holds something else.
    """
    if not path.exists():
        raise FileNotFoundError(f"no runs at {path}; record them with the data module of the task")
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
            frame_seconds=float(stored["frame_seconds"]),
            position_channels=int(stored["position_channels"]),
            state_channels=int(stored["state_channels"]),
        )
