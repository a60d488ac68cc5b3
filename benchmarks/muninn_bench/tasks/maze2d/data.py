"""Make the maze planner's training data: goal-reaching runs of the waypoint controller.

``python -m muninn_bench.tasks.maze2d.data --out data/maze2d-large.npz`` writes one compact file. Every run
is a function of ``(seed, index)`` alone, so the file does not depend on the number of processes,
and finished shards are kept and reused when the command is started again.

A run starts at rest at a random place, follows one of the shortest cell routes, drawn at random,
and ends at rest on its goal. Every third environment step is kept, which lets the longest route
and a hold at the goal fit in 256 frames.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muninn.files import write_whole
from muninn_bench.networks.runs import Runs
from muninn_bench.tasks.maze2d.controller import (
    TIME_STEP,
    ControllerConfig,
    make_reference,
    smooth_noise,
    tracking_action,
)
from muninn_bench.tasks.maze2d.maze import cell_of, draw_problem, shortest_route
from muninn_bench.tasks.maze2d.world import MazeWorld

FRAME_STRIDE = 3
"""Environment steps per frame of a plan."""

DATA_JITTER = 0.3
"""Offset of data starts and goals from cell centres: a little wider than the problems' 0.25 m, so
that problems lie inside the data."""

SHARD_RUNS = 500
_SETTLE_STEPS = 40
_FADE_STEPS = 60

# Range of each channel (x, y, vx, vy, fx, fy) in the 16-bit file: metres, m/s, action units.
_STORED_RANGE = np.array([6.0, 6.0, 6.0, 6.0, 1.0, 1.0])


@dataclass(frozen=True)
class MazeRuns(Runs):
    """Runs in the maze; frames are ``(x, y, vx, vy, fx, fy)`` in world units."""

    frame_seconds: float = FRAME_STRIDE * TIME_STEP
    position_channels: int = 2
    state_channels: int = 4


def make_run(world: MazeWorld, seed: int, index: int) -> NDArray[np.float64]:
    """Return run ``index``: frames of shape ``(frames, 6)`` from rest to rest at the goal."""
    generator = np.random.default_rng([seed, index])
    config = ControllerConfig()
    problem = draw_problem(generator, DATA_JITTER)
    route = shortest_route(cell_of(problem.start[:2]), cell_of(problem.goal), generator)
    reference = make_reference(problem, route, config)
    moving = len(reference.position)
    # Noise is faded out towards the goal so that the run really comes to rest there.
    fade = np.clip((moving - np.arange(moving)) / _FADE_STEPS, 0.0, 1.0)[:, None]
    noise = smooth_noise(moving, config, generator) * fade
    feedforward = tracking_action(
        reference.position, reference.velocity, reference.position, reference.velocity,
        reference.acceleration, config,
    )  # fmt: skip
    still = np.zeros((_SETTLE_STEPS, 2))
    states, actions = world.track(
        problem,
        np.concatenate([reference.position, still + reference.position[-1]]),
        np.concatenate([reference.velocity, still]),
        np.concatenate([feedforward + noise, still]),
        config,
    )
    return np.concatenate([states, actions], axis=1)[::FRAME_STRIDE]


def save_runs(path: Path, runs: list[NDArray[np.float64]]) -> None:
    """Write runs as 16-bit integers, first differences along time, compressed.

    Differences wrap around in 16 bits and are undone exactly by a wrapping cumulative sum; they
    halve the file, because neighbouring frames are alike.
    """
    offsets = np.concatenate([[0], np.cumsum([len(run) for run in runs])]).astype(np.int64)
    scaled = np.clip(np.concatenate(runs) / _STORED_RANGE, -1.0, 1.0) * 32767.0
    codes = np.round(scaled).astype(np.int16)
    codes[1:] = np.diff(codes, axis=0)
    # Channels first compresses better: equal channels lie next to each other.
    channels = np.ascontiguousarray(codes.T)
    write_whole(path, partial(np.savez_compressed, codes=channels, offsets=offsets))


def load_runs(path: Path) -> MazeRuns:
    """Read a file written by ``save_runs``.

    Raises:
        FileNotFoundError: With the command that makes the file.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; make it with: python -m muninn_bench.tasks.maze2d.data --out {path}"
        )
    with np.load(path) as stored:
        codes = np.cumsum(stored["codes"], axis=1, dtype=np.int16)
        frames = codes.T.astype(np.float64) / 32767.0 * _STORED_RANGE
        return MazeRuns(frames.astype(np.float32), stored["offsets"])


def generate(out: Path, count: int, seed: int, processes: int) -> None:
    """Write ``count`` runs to ``out``; shards beside it are reused if they exist."""
    shard_folder = out.with_suffix("") / f"seed{seed}"
    starts = range(0, count, SHARD_RUNS)
    jobs = [
        (shard_folder / f"runs{start:06d}-{min(start + SHARD_RUNS, count):06d}.npz", seed, start,
         min(start + SHARD_RUNS, count))
        for start in starts
    ]  # fmt: skip
    missing = [job for job in jobs if not job[0].exists()]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool, _progress(len(jobs)) as advance:
        advance(len(jobs) - len(missing))
        for _ in pool.imap_unordered(_make_shard, missing):
            advance(1)
    runs: list[NDArray[np.float64]] = []
    for path, *_ in jobs:
        shard = load_runs(path)
        runs += np.split(shard.frames.astype(np.float64), shard.offsets[1:-1])
    save_runs(out, runs)


def _make_shard(job: tuple[Path, int, int, int]) -> None:
    path, seed, first, last = job
    world = MazeWorld()
    save_runs(path, [make_run(world, seed, index) for index in range(first, last)])


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("maze runs", total=total)
        yield lambda count: bar.advance(task, count)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and write the data file."""
    parser = argparse.ArgumentParser(
        prog="python -m muninn_bench.tasks.maze2d.data", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=Path("data/maze2d-large.npz"))
    parser.add_argument("--count", type=int, default=30_000, help="number of runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    generate(options.out, options.count, options.seed, options.processes)


if __name__ == "__main__":
    main()
