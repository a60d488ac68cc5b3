"""Whether a teacher is good enough: full compute drives episodes; `muninn-bench score`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from muninn.cli import Crew
from muninn.errors import InputError
from muninn.parallel import Workers, workers_of
from muninn.progress import bars
from muninn_bench.commands import Device, Seed, Variant, console
from muninn_bench.measure.machine import find_device
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.measure.rollout import LANES, on_device, roll_out
from muninn_bench.measure.statistics import mean, proportion
from muninn_bench.networks.on_gpu import moved
from muninn_bench.report.table import write_csv
from muninn_bench.task import Guided, Result, Stream, Task


@dataclass(eq=False)
class _FullCompute:
    """Drives some episodes of a stream; a worker makes its own planner, once."""

    task: Task
    variant: str
    stream: Stream
    device: str
    seed: int

    @cached_property
    def _run(self) -> Run:
        there = moved(self.task.planner(self.variant), self.device)
        return on_device(plain(there), there.device)

    def __call__(self, numbers: range) -> tuple[list[Result], int]:
        """How the episodes ended, and their planning calls."""
        drives = roll_out(
            self.task,
            self.variant,
            self._run,
            self.stream,
            len(numbers),
            seed=self.seed,
            world=self.seed,
            lanes=len(numbers),
            first=numbers.start,
        )
        return [drive.result for drive in drives], sum(len(drive.contexts) for drive in drives)


def score_row(
    task: Task,
    variant: str,
    stream: Stream,
    episodes: int,
    *,
    device: str = "cpu",
    seed: int = 0,
    workers: Workers = None,
) -> dict[str, Any]:
    """Score and success of full compute over episodes of a stream, with 95% intervals.

    Raises:
        InputError: fewer than two episodes, or no such device.
    """
    if episodes < 2:
        raise InputError(f"an interval needs at least two episodes, got {episodes}")
    there = find_device(device)
    began = time.perf_counter()
    # A GPU takes as long for few rows as for many.
    lanes = LANES if device == "cpu" else episodes
    chunks = [range(at, min(at + lanes, episodes)) for at in range(0, episodes, lanes)]
    drive = _FullCompute(task, variant, stream, device, seed)
    results: list[Result] = []
    calls = 0
    with workers_of(workers, there) as crew, bars(True) as bar:
        advance = bar(f"drive {task.name} {variant}", episodes)
        for found, asked in crew.map(drive, chunks):
            results += found
            calls += asked
            advance(len(found))
    row: dict[str, Any] = {"task": task.name, "variant": variant, "episodes": episodes}
    if scores := [result.score for result in results if result.score is not None]:
        average = mean(scores)
        row |= {
            "score": average.value,
            "score_low": average.low,
            "score_high": average.high,
        }
    if share := proportion(np.array([bool(r.success) for r in results if r.success is not None])):
        row |= {"success": share.value, "success_low": share.low, "success_high": share.high}
    return row | {"calls": calls, "seconds": round(time.perf_counter() - began, 1)}


def score(
    task: Annotated[str, typer.Option(help="A task; `muninn-bench tasks` lists them.")],
    variant: Variant = None,
    episodes: Annotated[int, typer.Option(help="Episodes of each row.")] = 150,
    scale: Annotated[
        list[float] | None,
        typer.Option(help="Guidance, may be repeated; 0 is none. The task's own by default."),
    ] = None,
    tuning: Annotated[
        bool, typer.Option("--tuning", help="Episodes to choose settings by, not to test on.")
    ] = False,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Table to write.")] = Path("runs/score.csv"),
    seed: Seed = 0,
    workers: Crew = "1",
) -> None:
    """Drive episodes with full compute: is the teacher worth caching?"""
    from muninn_bench.registry import find_task, require_variant

    found = find_task(task)
    name = require_variant(found, variant)
    stream = Stream.TUNE if tuning else Stream.TEST
    rows: list[dict[str, Any]] = []
    for each in guided_as(found, scale):
        added = {} if scale is None else {"scale": scale[len(rows)]}
        row = score_row(each, name, stream, episodes, device=device, seed=seed, workers=workers)
        rows.append(added | row)
        write_csv(out, rows)  # what is finished is kept
    console.print(out.read_text())


def guided_as(task: Task, scales: Sequence[float] | None) -> list[Task]:
    """The task with each scale of guidance; itself if there are none.

    Raises:
        InputError: its planners have no guidance.
    """
    if scales is None:
        return [task]
    if not isinstance(task, Guided):
        raise InputError(f"the planners of {task.name} have no guidance; leave out --scale")
    return [task.guided(each) for each in scales]
