"""Measure programs on the study's calls: cells, paired with full compute, and times.

The one place that knows that the world is Maze2D: problems, walls, and plans followed in it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save

from muninn.certify.metrics import measure, rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.files import write_whole
from muninn.model.denoiser import fingerprint
from muninn.model.schedule import FloatArray
from muninn.paper.score import SCORES
from muninn.paper.split import DEPTHS, Split, split_of
from muninn.progress import Task
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.turns import take_turns, time_call
from muninn_bench.networks.on_gpu import use_matrix_products
from muninn_bench.networks.teacher import Teacher
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, Key, load_cell, save_cell
from muninn_bench.studies.ablation.settings import SEED, Sizes
from muninn_bench.tasks.maze2d.clearance import clearance
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS, MazeProblem, sample_problems
from muninn_bench.tasks.maze2d.planner import STATE_CHANNELS, maze_contexts, maze_planner

TUNE, GHOST = "tune", "ghost"
REPEATS, WARM_UP = 40, 5
_STREAMS = {TUNE: 1, CALIBRATE: 2, TEST: 3, GHOST: 4}


def called(call: Callable[..., Any]) -> Run:
    """A runtime, called with its noise by name, as the study runs it."""
    return lambda context, noise: call(context, noise=noise)


@dataclass(frozen=True)
class Member:
    """A program of the study, without the calls it is measured on."""

    method: str
    order: int
    settings: dict[str, Any]
    run: Run
    driven: bool = True  # its plans are followed in the environment as well


class Workbench:
    """One teacher, moved to a device, and the study's streams of calls; its raw folder."""

    def __init__(
        self, teacher: Teacher, sizes: Sizes, device: torch.device, folder: Path, task: Task
    ) -> None:
        # Of the teacher as it is stored: the same wherever it is measured.
        self.weights = fingerprint(maze_planner(teacher).denoiser)["weights"]
        if device.type == "cuda":
            use_matrix_products(teacher.network)
        teacher.network.to(device)
        self.teacher, self.planner = teacher, maze_planner(teacher)
        self.sizes, self.device, self.folder, self.task = sizes, device, folder, task
        self._paired: dict[str, PairedCalls] = {}

    def problems(self, stream: str) -> list[MazeProblem]:
        """The problems of a stream; no stream shares one with another."""
        count = getattr(self.sizes, stream)
        return sample_problems(count, seed=call_seed(SEED, _STREAMS[stream]) % 2**31)

    def calls(self, stream: str) -> PairedCalls:
        """The calls of a stream; full compute is run when it is asked for, or read if kept."""
        if stream not in self._paired:
            contexts = maze_contexts(self.teacher, self.problems(stream))
            seed = call_seed(SEED, _STREAMS[stream], 1)
            paired = PairedCalls(self.planner, contexts, len(contexts), rms_step, seed)
            if (path := self._plans(stream)).is_file():
                paired.known = dict(enumerate(load_file(path)["plans"].to(self.device)))
            self._paired[stream] = paired
        return self._paired[stream]

    def _plans(self, stream: str) -> Path:
        return self.folder / f"full-{stream}.safetensors"

    def planned(self, stream: str) -> PairedCalls:
        """The calls of a stream with their full plans, made once and kept in a file."""
        paired = self.calls(stream)
        if not self._plans(stream).is_file():
            advance = self.task(f"full compute, {stream}", paired.count)
            for chosen in self._batches(paired.count):
                paired.full(chosen)
                advance(len(chosen))
            plans = paired.full(list(range(paired.count)))
            write_whole(self._plans(stream), save({"plans": plans.cpu().contiguous()}))
        return paired

    def _batches(self, count: int) -> list[list[int]]:
        size = self.sizes.batch
        return [list(range(at, min(at + size, count))) for at in range(0, count, size)]

    def measure(self, member: Member, stream: str, most: int = 0) -> Cell:
        """The cell of a member on a stream: read if it is there, else measured and written.

        ``most`` bounds the calls; 0 takes all of the stream.
        """
        key = Key(member.method, member.order, stream, member.settings)
        path = self.folder / "cells" / key.filename()
        count = min(getattr(self.sizes, stream), most or getattr(self.sizes, stream))
        if path.is_file() and len((cell := load_cell(path)).deviation) >= count:
            return cell
        paired = self.planned(stream)
        driven = self.sizes.drive if stream == TEST and member.driven else 0
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        for chosen in self._batches(count):
            trajectory, record = member.run(paired.contexts(chosen), paired.noise(chosen))
            world = self.teacher.unnormalise(trajectory)
            kept = max(0, min(len(chosen), driven - chosen[0]))
            parts.append(
                (
                    measure(rms_step, paired.full(chosen), trajectory).astype(np.float32),
                    record.evaluations.astype(np.int16),
                    record.estimate.astype(np.float32),
                    clearance(world[..., :2]).cpu().numpy() < BALL_RADIUS,
                    np.zeros(0, np.bool_),  # success, once the plans are driven
                    record.evaluated,
                    np.zeros((len(chosen), 0)) if record.charged is None else record.charged,
                    world[:kept, ::2, :STATE_CHANNELS].half().cpu().numpy(),
                )
            )
        cell = Cell(key, self.device.type, *map(np.concatenate, zip(*parts, strict=True)))
        evaluated, charged = cell.evaluated.mean(axis=0), cell.charged.mean(axis=0)
        cell = replace(cell, evaluated=evaluated, charged=charged)
        save_cell(path.parent, cell)
        return cell

    def write_clearance(self) -> None:
        """Smallest distance to a wall of the full plan of every test call, if not there yet."""
        path = self.folder / "clearance.npy"
        if not path.is_file():
            plans = self.planned(TEST).full(list(range(self.sizes.test)))
            distances = clearance(self.teacher.unnormalise(plans)[..., :2]).cpu().numpy()
            write_whole(path, lambda file: np.save(file, distances))

    def drive(self) -> None:
        """Follow the kept plans of every test cell in the environment and keep only the outcome."""
        from muninn_bench.tasks.maze2d.rollout import follow_all

        paths = sorted((self.folder / "cells").glob(f"{TEST}-*.safetensors"))
        problems = self.problems(TEST)
        advance = self.task("follow plans in the environment", len(paths))
        for path in paths:
            if len((cell := load_cell(path)).plans):
                success = follow_all(problems[: len(cell.plans)], _frames(cell.plans))
                save_cell(path.parent, replace(cell, success=success, plans=cell.plans[:0]))
            advance(1)


def _frames(kept: npt.NDArray[np.float16]) -> FloatArray:
    """Plans (calls, horizon, 6) from every second frame of their states; actions are not used."""
    known = kept.astype(np.float64)
    later = np.concatenate([(known[:, :-1] + known[:, 1:]) / 2.0, known[:, -1:]], axis=1)
    frames = np.stack([known, later], axis=2).reshape(len(known), -1, known.shape[2])
    plans: FloatArray = np.pad(frames, ((0, 0), (0, 0), (0, 2)))
    return plans


def time_members(workbench: Workbench, members: Sequence[Member]) -> None:
    """Time single calls, all programs in every round, so that a slow minute is shared by all."""
    path = workbench.folder / "timing.json"
    asked = [[member.method, member.order, member.settings] for member in members]
    if path.is_file() and json.loads(path.read_text()).get("members") == asked:
        return
    rounds, paired = workbench.sizes.rounds, workbench.calls(TEST)
    picked = [[turn % paired.count] for turn in range(rounds)]
    calls = [(paired.contexts(call), paired.noise(call)) for call in picked]
    turns = take_turns(
        [
            lambda turn, run=member.run: int(run(*calls[max(turn, 0)])[1].evaluations[0])  # type: ignore[misc]
            for member in members
        ],
        warm_up=1,
        timed=rounds,
        device=workbench.device,
        advance=workbench.task("time single calls", rounds + 1),
    )
    rows = [
        {
            "method": member.method,
            "order": member.order,
            "settings": member.settings,
            "evaluations": float(np.mean([turn.result for turn in own])),
            "seconds": [turn.seconds for turn in own],
        }
        for member, own in zip(members, turns, strict=True)
    ]
    document = {
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "members": asked,
        "full_seconds": next(row["seconds"] for row in rows if row["method"] == "full"),
        "rows": [row for row in rows if row["method"] != "full"],
    }
    write_whole(path, json.dumps(document) + "\n")


@torch.no_grad()
def time_parts(workbench: Workbench) -> None:
    """Median milliseconds of stem, core, whole network, sampler step and bookkeeping, batch 1."""
    path = workbench.folder / "overhead.json"
    if path.is_file():
        return
    planner, device = workbench.planner, workbench.device
    middle = len(planner.sampler) // 2
    x, told = planner.draw_noise(1, generator=None).initial, planner.timestep(middle, 1)
    context = workbench.calls(TEST).contexts([0])

    def timed(action: Callable[[], object]) -> float:
        # A processor is faster in a burst than in the long run, in which whole calls are timed.
        until = time.perf_counter() + workbench.sizes.rounds / 6
        while time.perf_counter() < until:
            planner.denoiser(x, told, context)
        seconds = [time_call(action, device)[0] for _ in range(WARM_UP + REPEATS)]
        return 1e3 * float(np.median(seconds[WARM_UP:]))

    def probe(split: Split) -> object:
        return split.feature(split.stem(x, told, context), x)

    prediction = planner.denoiser(x, told, context)
    document: dict[str, Any] = {
        "full_ms": timed(lambda: planner.denoiser(x, told, context)),
        "step_ms": timed(lambda: planner.advance(x, prediction, middle, None, context)),
        "stem_ms": {},
        "core_ms": {},
    }
    for depth in DEPTHS:
        split = split_of(planner.denoiser, depth)
        hidden = split.stem(x, told, context)
        document["stem_ms"][depth] = timed(partial(probe, split))
        document["core_ms"][depth] = timed(partial(split.core, hidden, x, told, context))
        if depth == "stem-1":
            document["bookkeeping_ms"] = timed(partial(_bookkeep, split.feature(hidden, x)))
    own = {name: document[name] for name in ("full_ms", "stem_ms")}
    document["networks"] = {type(workbench.teacher.network).__name__: own}
    write_whole(path, json.dumps(document, indent=1) + "\n")


def _bookkeep(feature: torch.Tensor) -> torch.Tensor:
    """What a gate does besides the stem: a score, a look-up, a comparison read by the host."""
    score = SCORES["relative_l1"](feature, feature)
    table = torch.linspace(0.0, 1.0, 256, device=feature.device)
    cost = table[torch.searchsorted(table, score).clamp_max(255)]
    (cost <= score).nonzero()
    return cost
