"""Throughput on a batch: Full batched against Muninn batched, rows deciding for themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from torch import Tensor

from muninn.context import Context
from muninn.engines.rounds import RoundRuntime
from muninn.model.planner import Noise
from muninn.progress import Task
from muninn.record import Record
from muninn_bench.measure.machine import hardware
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.measure.turns import Spread, take_turns
from muninn_bench.studies.latency.methods import run_program
from muninn_bench.studies.latency.programs import Programs
from muninn_bench.studies.latency.rows import BatchRow
from muninn_bench.studies.latency.settings import Settings

WARM_UP = 2  # the first call captures
CAPS = {"gated": 1.5, "gated, loose cap": 2.0}
"""Gates by the ratio of their cap to the static plan's evaluations: a batch lasts as long as its
slowest row, so the cap decides what a batch costs."""


def measure_batch(
    programs: Programs, batch: int, settings: Settings, task: Task, *, graphed: bool
) -> list[BatchRow]:
    """Full and Muninn on one batch of rows, taking turns."""
    subject, planner = programs.subject, programs.planner
    runs: dict[tuple[str, str], Run] = {("full", "eager"): plain(planner)}
    if graphed:
        runs["full", "graph"] = run_program(planner, programs.full, "graph")
        runs["static", "graph"] = run_program(planner, programs.static, "graph")
        for name, ratio in CAPS.items():
            runs[name, "graph"] = run_program(planner, programs.capped(ratio), "graph")
    else:
        runs["static", "eager"] = run_program(planner, programs.static, "eager")
        for name, ratio in CAPS.items():
            rounds = RoundRuntime(planner, programs.capped(ratio), on_failure="error")
            runs[name, "eager"] = functools.partial(_in_rounds, rounds)
    call = subject.batch(batch)

    def evaluations(run: Run) -> Callable[[int], float]:
        return lambda number: float(np.mean(run(*call)[1].evaluations))

    turns = take_turns(
        [evaluations(run) for run in runs.values()],
        warm_up=WARM_UP,
        timed=settings.batch_timed,
        device=planner.device,
        advance=task(f"{subject.name}: batch of {batch}", WARM_UP + settings.batch_timed),
    )
    milliseconds = [Spread.of([turn.seconds for turn in own]).p50 for own in turns]
    fulls = [ms for (method, _), ms in zip(runs, milliseconds, strict=True) if method == "full"]
    rows = []
    for (method, engine), own, ms in zip(runs, turns, milliseconds, strict=True):
        mean = float(np.mean([turn.result for turn in own]))
        rows.append(
            BatchRow(
                subject.name,
                subject.title,
                batch,
                method,
                engine,
                mean,
                ms,
                1e3 * batch / ms,
                min(fulls) / ms,
                len(planner.sampler) / mean,
                hardware(planner.device),
            )
        )
    return rows


def _in_rounds(rounds: RoundRuntime, context: Context, noise: Noise) -> tuple[Tensor, Record]:
    return rounds(context, noise=noise)
