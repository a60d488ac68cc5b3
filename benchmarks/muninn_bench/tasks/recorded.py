"""Record training data, as ``muninn-bench data`` does, and what planners learn from it.

Every run is a function of ``(seed, index)`` alone, so the file does not depend on the number of
workers; finished shards are kept beside it and reused when the command is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers, workers_of
from muninn.progress import bars
from muninn_bench.networks.runs import Runs, load_runs, save_runs
from muninn_bench.networks.teacher import NetworkConfig
from muninn_bench.networks.trainer import Training
from muninn_bench.planners.diffuser_lesson import DiffuserLesson

SHARD = 200
"""Indices recorded at a time."""

Make = Callable[[int, int], Sequence[FloatArray]]
"""``make(seed, index)``: a module's function; runs, each (frames, channels), world units."""


@dataclass(frozen=True)
class Recording:
    """How the data of a task is recorded."""

    name: str  # of the task
    make: Make
    count: int  # runs that the planners were trained on
    frame_seconds: float  # this and the next two: see Runs
    position_channels: int
    state_channels: int
    each: int = 1  # runs that one call of make records
    shard: int | None = None  # indices recorded at a time, where episodes are long

    def generate(self, out: Path, count: int | None, seed: int = 0, workers: Workers = 2) -> Runs:
        """Write ``count`` runs, in the order of their indices; as many as usual if None.

        Raises:
            InputError: the count is below one.
        """
        count = self.count if count is None else count
        if count < 1:
            raise InputError(f"data needs at least one run, got {count}")
        last = -(-count // self.each)
        size = self.shard or SHARD
        shards = [range(at, min(at + size, last)) for at in range(0, last, size)]
        folder = out.with_suffix("") / f"seed{seed}"
        runs: list[FloatArray] = []
        with bars(True) as task, workers_of(workers) as crew:
            advance = task(f"{self.name} runs", last)
            record = partial(_record, self.make, folder, seed)
            for shard, path in zip(shards, crew.map(record, shards), strict=True):
                with np.load(path) as stored:
                    runs += np.split(stored["frames"], stored["offsets"])
                advance(len(shard))
        recorded = Runs(
            frames=np.concatenate(runs[:count]).astype(np.float32),
            offsets=np.cumsum([0, *map(len, runs[:count])]).astype(np.int64),
            frame_seconds=self.frame_seconds,
            position_channels=self.position_channels,
            state_channels=self.state_channels,
        )
        save_runs(out, recorded)
        return recorded


def _record(make: Make, folder: Path, seed: int, shard: range) -> Path:
    """The file of a shard's runs; recorded if there is none."""
    path = folder / f"runs{shard[0]:06d}-{shard[-1]:06d}.npz"
    if not path.exists():
        runs = [run for index in shard for run in make(seed, index)]
        offsets = np.cumsum([len(run) for run in runs])[:-1]
        write_whole(path, partial(np.savez, frames=np.concatenate(runs), offsets=offsets))
    return path


def refuse_source(task: str, source: Path | None) -> None:
    """Raise InputError if a file is named for data that is made from none."""
    if source is not None:
        raise InputError(f"the data of {task} is made from no file; leave out --source {source}")


class RecordedTask:
    """A task whose planners are Diffusers of recorded runs: see its card for their training."""

    recording: Recording
    networks: Mapping[str, NetworkConfig]  # by variant
    horizon: int
    whole_share: float = 0.6  # of plans that start at a run's start

    def make_data(
        self,
        path: Path,
        count: int | None,
        seed: int,
        workers: Workers,
        source: Path | None = None,
    ) -> None:
        """Record runs, from the world alone."""
        refuse_source(self.recording.name, source)
        self.recording.generate(path, count, seed, workers)

    def lesson(self, variant: str, data: Path, settings: Training) -> DiffuserLesson:
        """Plans, or their noise, between an inpainted start and goal."""
        return DiffuserLesson(
            load_runs(data),
            self.networks[variant],
            self.horizon,
            torch.device(settings.device),
            seed=settings.seed,
            whole_share=self.whole_share,
        )
