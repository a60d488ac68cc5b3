"""Throughput on a batch: Full batched against Muninn batched, rows deciding for themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from muninn.bench.latency.machine import hardware
from muninn.bench.latency.methods import run_program
from muninn.bench.latency.programs import Programs
from muninn.bench.latency.rows import BatchRow
from muninn.bench.latency.settings import Settings
from muninn.bench.latency.turns import Spread, take_turns
from muninn.bench.protocol import Run, plain
from muninn.progress import Task
from muninn.rounds import RoundRuntime

WARM_UP = 2  # the first call captures


def measure_batch(
    programs: Programs, batch: int, settings: Settings, task: Task, *, graphed: bool
) -> list[BatchRow]:
    """Full and Muninn on one batch of rows, taking turns.

    The gate's cap is twice the static plan's evaluations, so that rows need different numbers.
    """
    subject, planner = programs.subject, programs.planner
    runs: dict[tuple[str, str], Run] = {("full", "eager"): plain(planner)}
    if graphed:
        runs["full", "graph"] = run_program(planner, programs.full, "graph")
        runs["static", "graph"] = run_program(planner, programs.static, "graph")
        runs["gated", "graph"] = run_program(planner, programs.loose, "graph")
    else:
        runs["static", "eager"] = run_program(planner, programs.static, "eager")
        rounds = RoundRuntime(planner, programs.loose, on_failure="error")
        runs["gated", "eager"] = lambda context, noise: rounds(context, noise=noise)
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
