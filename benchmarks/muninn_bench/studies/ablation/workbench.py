"""Measure programs on the study's calls, paired with full compute, into cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from muninn.certify.metrics import measure, rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.context import Context
from muninn.files import write_whole
from muninn.model.denoiser import fingerprint
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.progress import Task
from muninn.record import Record
from muninn_bench.networks.matrix_convolution import use_matrix_products
from muninn_bench.networks.teacher import Teacher
from muninn_bench.studies.ablation.cells import CALIBRATE, TEST, Cell, Key, load_cell, save_cell
from muninn_bench.studies.ablation.settings import Sizes
from muninn_bench.tasks.maze2d.clearance import clearance
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS, MazeProblem, sample_problems
from muninn_bench.tasks.maze2d.planner import STATE_CHANNELS, maze_contexts, maze_planner

Run = Callable[[Context, Noise], tuple[Tensor, Record]]
TUNE, GHOST = "tune", "ghost"
_STREAMS = {TUNE: 1, CALIBRATE: 2, TEST: 3, GHOST: 4}


@dataclass(frozen=True)
class Member:
    """A program of the study, without the calls it is measured on.

    ``driven`` says whether its plans are followed in the environment as well.
    """

    method: str
    order: int
    settings: Mapping[str, object]
    run: Run
    driven: bool = True

    def key(self, stream: str) -> Key:
        """Name of its cell."""
        return Key(self.method, self.order, stream, dict(self.settings))


class Workbench:
    """One teacher, its planner on a device, and the study's streams of calls.

    Args:
        teacher: the network and its coordinates; moved to the device.
        sizes: calls of each stream.
        seed: of every problem and noise.
        device: where to measure.
        folder: raw folder of this teacher.
        task: progress bars.
    """

    def __init__(
        self,
        teacher: Teacher,
        sizes: Sizes,
        seed: int,
        device: torch.device,
        folder: Path,
        task: Task,
    ) -> None:
        # Of the teacher as it is stored: the same wherever it is measured.
        self.weights: str | None = fingerprint(maze_planner(teacher).denoiser)["weights"]
        if device.type == "cuda":
            use_matrix_products(teacher.network)
        teacher.network.to(device)
        self.teacher = teacher
        self.planner: Planner = maze_planner(teacher)
        self.sizes = sizes
        self.seed = seed
        self.device = device
        self.folder = folder
        self.task = task
        self._planned: set[str] = set()
        self._paired: dict[str, PairedCalls] = {}

    @property
    def cells(self) -> Path:
        """Where cells are kept."""
        return self.folder / "cells"

    def problems(self, stream: str) -> list[MazeProblem]:
        """The problems of a stream; no stream shares one with another."""
        count = getattr(self.sizes, stream)
        return sample_problems(count, seed=call_seed(self.seed, _STREAMS[stream]) % 2**31)

    def noise_seed(self, stream: str) -> int:
        """Seed of the noise of a stream's calls."""
        return call_seed(self.seed, _STREAMS[stream], 1)

    def calls(self, stream: str) -> PairedCalls:
        """The calls of a stream; full compute is run when it is asked for."""
        if stream not in self._paired:
            problems = self.problems(stream)
            self._paired[stream] = PairedCalls(
                self.planner,
                maze_contexts(self.teacher, problems),
                len(problems),
                rms_step,
                self.noise_seed(stream),
            )
        return self._paired[stream]

    def planned(self, stream: str) -> PairedCalls:
        """The calls of a stream with their full plans, made once and kept in a file."""
        paired = self.calls(stream)
        if stream in self._planned:
            return paired
        self._planned.add(stream)
        path = self.folder / f"full-{stream}.safetensors"
        if path.is_file():
            paired.remember(load_file(path)["plans"].to(self.device))
            return paired
        advance = self.task(f"full compute, {stream}", paired.count)
        for chosen in self._batches(paired.count):
            paired.full(chosen)
            advance(len(chosen))
        plans = paired.full(list(range(paired.count)))
        write_whole(path, save({"plans": plans.cpu().contiguous()}))
        return paired

    def _batches(self, count: int) -> list[list[int]]:
        size = self.sizes.batch
        return [list(range(at, min(at + size, count))) for at in range(0, count, size)]

    def measure(self, member: Member, stream: str, most_calls: int | None = None) -> Cell:
        """The cell of a member on a stream: read if it is there, else measured and written."""
        key = member.key(stream)
        path = self.cells / key.filename()
        count = min(getattr(self.sizes, stream), most_calls or getattr(self.sizes, stream))
        if path.is_file() and len((cell := load_cell(path)).deviation) >= count:
            return cell
        paired = self.planned(stream)
        deviation, evaluations, estimate, collided = [], [], [], []
        evaluated, charged, plans = [], [], []
        driven = self.sizes.drive if stream == TEST and member.driven else 0
        for chosen in self._batches(count):
            trajectory, record = member.run(paired.contexts(chosen), paired.noise(chosen))
            deviation.append(measure(rms_step, paired.full(chosen), trajectory))
            evaluations.append(record.evaluations)
            estimate.append(record.estimate)
            world = self.teacher.unnormalise(trajectory)
            collided.append((clearance(world[..., :2]) < BALL_RADIUS).cpu().numpy())
            evaluated.append(record.evaluated)
            if record.charged is not None:
                charged.append(record.charged)
            kept = max(0, min(len(chosen), driven - chosen[0]))
            plans.append(world[:kept, ::2, :STATE_CHANNELS].half().cpu().numpy())
        cell = Cell(
            key,
            self.device.type,
            np.concatenate(deviation).astype(np.float32),
            np.concatenate(evaluations).astype(np.int16),
            np.concatenate(estimate).astype(np.float32),
            np.concatenate(collided),
            np.zeros(0, np.bool_),
            _mean(evaluated),
            _mean(charged),
            np.concatenate(plans),
        )
        save_cell(self.cells, cell)
        return cell

    def write_clearance(self) -> None:
        """Smallest distance to a wall of the full plan of every test call, if not there yet."""
        if (self.folder / "clearance.npy").is_file():
            return
        plans = self.planned(TEST).full(list(range(self.sizes.test)))
        world = self.teacher.unnormalise(plans)[..., :2]
        distances = clearance(world).cpu().numpy()
        write_whole(self.folder / "clearance.npy", lambda file: np.save(file, distances))


def _mean(parts: Sequence[npt.NDArray[Any]]) -> FloatArray:
    """Mean over calls of arrays (calls, steps); empty where there are none."""
    if not parts:
        return np.zeros(0)
    mean: FloatArray = np.concatenate(parts).mean(axis=0)
    return mean


def _frames(kept: npt.NDArray[np.float16]) -> FloatArray:
    """Plans (calls, horizon, 6) from every second frame of their states; actions are not used."""
    known = kept.astype(np.float64)
    between = (known[:, :-1] + known[:, 1:]) / 2.0
    last = known[:, -1:]
    pairs = np.stack([known, np.concatenate([between, last], axis=1)], axis=2)
    plans: FloatArray = np.pad(
        pairs.reshape(len(known), -1, known.shape[2]), ((0, 0), (0, 0), (0, 2))
    )
    return plans


def drive(workbench: Workbench) -> None:
    """Follow the kept plans of every test cell in the environment and keep only the outcome."""
    from muninn_bench.tasks.maze2d.rollout import follow_all

    problems = workbench.problems(TEST)
    waiting = [
        path
        for path in sorted(workbench.cells.glob(f"{TEST}-*.safetensors"))
        if len(load_cell(path).plans)
    ]
    advance = workbench.task("follow plans in the environment", len(waiting))
    for path in waiting:
        cell = load_cell(path)
        success = follow_all(problems[: len(cell.plans)], _frames(cell.plans))
        save_cell(path.parent, replace(cell, success=success, plans=cell.plans[:0]))
        advance(1)
