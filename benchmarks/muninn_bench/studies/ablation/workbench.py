"""Measure programs on the study's Maze2D calls: cells, paired with full compute, and times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from muninn.certify.metrics import measure, rms_step
from muninn.certify.paired import PairedCalls, call_seed, full_compute
from muninn.context import Context
from muninn.files import write_whole
from muninn.model.denoiser import fingerprint
from muninn.model.planner import Noise
from muninn.paper.score import SCORES
from muninn.paper.split import DEPTHS, Split, split_of
from muninn.parallel import Map
from muninn.progress import Task
from muninn.record import Record
from muninn_bench.measure.machine import hardware
from muninn_bench.measure.protocol import batches
from muninn_bench.measure.turns import take_turns, time_call
from muninn_bench.networks.on_gpu import use_matrix_products
from muninn_bench.networks.teacher import Teacher
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, Named, load_cell, save_cell
from muninn_bench.studies.ablation.settings import SEED, Sizes
from muninn_bench.tasks.maze2d.clearance import clearance
from muninn_bench.tasks.maze2d.maze import MazeProblem, sample_problems
from muninn_bench.tasks.maze2d.planner import STATE_CHANNELS, maze_contexts, maze_planner

Made = TypeVar("Made")

TUNE, GHOST = "tune", "ghost"
REPEATS, WARM_UP = 40, 5
_STREAMS = {TUNE: 1, CALIBRATE: 2, TEST: 3, GHOST: 4}


@dataclass(frozen=True)
class Member(Named):
    """A program of the study, without the calls it is measured on; takes its noise by name."""

    run: Callable[..., tuple[torch.Tensor, Record]]


class Workbench:
    """One teacher, moved to a device, and the study's streams of calls; its raw folder."""

    def __init__(
        self,
        teacher: Teacher,
        sizes: Sizes,
        device: torch.device,
        folder: Path,
        task: Task,
        workers: Map,
    ) -> None:
        # Of the teacher as it is stored: the same wherever it is measured.
        self.weights = fingerprint(maze_planner(teacher).denoiser)["weights"]
        if device.type == "cuda":
            use_matrix_products(teacher.network)
        teacher.network.to(device)
        self.teacher, self.planner = teacher, maze_planner(teacher)
        self.sizes, self.device, self.folder, self.task = sizes, device, folder, task
        self.workers = workers
        self._paired: dict[str, PairedCalls] = {}

    def problems(self, stream: str) -> list[MazeProblem]:
        """The problems of a stream; no stream shares one with another."""
        count = getattr(self.sizes, stream)
        return sample_problems(count, seed=call_seed(SEED, _STREAMS[stream]) % 2**31)

    def calls(self, stream: str) -> PairedCalls:
        """The calls of a stream; full compute is run when it is asked for, here."""
        if stream not in self._paired:
            contexts = maze_contexts(self.teacher, self.problems(stream))
            seed, batch = call_seed(SEED, _STREAMS[stream], 1), self.sizes.batch
            self._paired[stream] = PairedCalls(
                self.planner, contexts, len(contexts), rms_step, seed, batch=batch
            )
        return self._paired[stream]

    def path(self, member: Member, stream: str = TEST) -> Path:
        """Where the cell of a member on a stream lies."""
        return self.folder / "cells" / member.filename(stream)

    def measure(self, member: Member, stream: str, most: int = 0) -> Cell:
        """The cell of a member on a stream: read if it is there, else measured and written.

        ``most`` bounds the calls; 0 takes all of the stream.
        """
        count = min(getattr(self.sizes, stream), most or getattr(self.sizes, stream))
        path = self.path(member, stream)
        if path.is_file() and len((cell := load_cell(path)).deviation) >= count:
            return cell
        paired, parts = self.calls(stream), []
        chunks = batches(paired, count)
        self._plan_in_full(paired, chunks)
        for calls, (trajectory, record) in zip(
            chunks, self._planned(member.run, paired, chunks), strict=True
        ):
            world = self.teacher.unnormalise(trajectory)
            part: dict[str, Any] = {
                "deviation": measure(rms_step, paired.full(calls), trajectory).astype(np.float32),
                "evaluations": record.evaluations.astype(np.int16),
                "estimate": record.estimate.astype(np.float32),
                "clearance": clearance(world[..., :2]).float().cpu().numpy(),
                "plans": world[:, ::2, :STATE_CHANNELS].half().cpu().numpy(),
                "evaluated": record.evaluated,
                "charged": np.zeros((len(calls), 0)) if record.charged is None else record.charged,
            }
            parts.append(part)
        joined: dict[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        joined |= {name: joined[name].mean(axis=0) for name in ("evaluated", "charged")}
        # Of table (vii)'s many variants none is followed in the environment.
        driven = self.sizes.drive * (stream == TEST and not member.method.startswith("variant-"))
        joined |= {"plans": joined["plans"][:driven], "success": np.zeros(0, np.bool_)}
        about = {name: getattr(member, name) for name in ("method", "order", "settings")}
        cell = Cell(**about, stream=stream, device=self.device.type, **joined)
        save_cell(path.parent, cell)
        return cell

    def _plan_in_full(self, paired: PairedCalls, chunks: list[list[int]]) -> None:
        """Have the workers plan what the paired calls do not know yet."""
        missing = [calls for calls in chunks if any(call not in paired.known for call in calls)]
        planned = self._planned(partial(full_compute, self.planner), paired, missing)
        for calls, trajectories in zip(missing, planned, strict=True):
            paired.known.update(zip(calls, trajectories, strict=True))

    def _planned(
        self, run: Callable[..., Made], paired: PairedCalls, chunks: list[list[int]]
    ) -> Iterator[Made]:
        """What a function makes of the calls, chunk by chunk, on the workers."""
        asked = ((paired.contexts(calls), paired.noise(calls)) for calls in chunks)
        return self.workers.map(partial(_called, run), asked)

    def drive(self) -> None:
        """Follow the kept plans of every test cell in the environment and keep only the outcome."""
        from muninn_bench.tasks.maze2d.rollout import follow_all

        paths = sorted((self.folder / "cells").glob(f"{TEST}-*.safetensors"))
        problems = self.problems(TEST)
        advance = self.task("follow plans in the environment", len(paths))
        for path in paths:
            if len((cell := load_cell(path)).plans):
                # Frames between those kept lie half-way; the actions, left out, are not used.
                kept = cell.plans.astype(np.float64)
                later = np.concatenate([(kept[:, :-1] + kept[:, 1:]) / 2.0, kept[:, -1:]], axis=1)
                frames = np.stack([kept, later], axis=2).reshape(len(kept), -1, STATE_CHANNELS)
                plans = np.pad(frames, ((0, 0), (0, 0), (0, 2)))
                success = follow_all(problems[: len(plans)], plans)
                save_cell(path.parent, replace(cell, success=success, plans=cell.plans[:0]))
            advance(1)


def _called(run: Callable[..., Made], asked: tuple[Context, Noise]) -> Made:
    context, noise = asked
    return run(context, noise=noise)


def time_members(workbench: Workbench, members: Sequence[Member]) -> None:
    """Time single calls, all programs in every round, so that a slow minute is shared by all."""
    rounds, paired = workbench.sizes.rounds, workbench.calls(TEST)
    cells = [load_cell(workbench.path(member)) for member in members]
    if all(len(cell.seconds) == rounds for cell in cells):
        return
    picked = [[turn % paired.count] for turn in range(rounds)]
    calls = [(paired.contexts(call), paired.noise(call)) for call in picked]

    def timed(member: Member, turn: int) -> None:
        context, noise = calls[max(turn, 0)]
        member.run(context, noise=noise)

    turns = take_turns(
        [partial(timed, member) for member in members],
        warm_up=1,
        timed=rounds,
        device=workbench.device,
        advance=workbench.task("time single calls", rounds + 1),
    )
    for cell, own in zip(cells, turns, strict=True):
        seconds = np.array([turn.seconds for turn in own])
        save_cell(workbench.folder / "cells", replace(cell, seconds=seconds))


@torch.no_grad()
def time_parts(workbench: Workbench) -> None:
    """Median milliseconds of stem, core, whole network, sampler step and bookkeeping, batch 1."""
    path = workbench.folder / "timing.json"
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

    def probe(split: Split) -> torch.Tensor:
        return split.feature(split.stem(x, told, context), x)

    def core(split: Split) -> Callable[[], object]:
        return partial(split.core, split.stem(x, told, context), x, told, context)

    def bookkeep(feature: torch.Tensor) -> None:
        """What a gate does besides the stem: a score, a look-up, a comparison read by the host."""
        score = SCORES["relative_l1"](feature, feature)
        table = torch.linspace(0.0, 1.0, 256, device=feature.device)
        (table[torch.searchsorted(table, score).clamp_max(255)] <= score).nonzero()

    prediction = planner.denoiser(x, told, context)
    splits = {depth: split_of(planner.denoiser, depth) for depth in DEPTHS}
    document = {
        "hardware": hardware(device),
        "rounds": workbench.sizes.rounds,
        "network": type(workbench.teacher.network).__name__,
        "full_ms": timed(lambda: planner.denoiser(x, told, context)),
        "step_ms": timed(lambda: planner.advance(x, prediction, middle, None, context)),
        "stem_ms": {depth: timed(partial(probe, split)) for depth, split in splits.items()},
        "core_ms": {depth: timed(core(split)) for depth, split in splits.items()},
        "bookkeeping_ms": timed(partial(bookkeep, probe(splits["stem-1"]))),
    }
    write_whole(path, json.dumps(document, indent=1) + "\n")
