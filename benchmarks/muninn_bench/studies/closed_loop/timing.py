"""Measure a latency trace: single jobs of every program, taking turns on this machine."""

from __future__ import annotations

import time

from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.loop.request import Request
from muninn.progress import bars
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms
from muninn_bench.studies.closed_loop.traces import Timed, Trace

WARM_UP = 3


def measure_trace(
    programs: ClosedLoopPrograms, contexts: Tensor, calls: int, progress: bool = True
) -> Trace:
    """Time single jobs, screening included.

    Args:
        programs: to time: full compute, the certified program and its new samples, and fewer
            steps where they were tuned.
        contexts: (count, ...), taken in turn.
        calls: jobs of each, after a warm-up.
        progress: show a bar.
    """
    fewer = [] if programs.fewer is None else [("fewsteps", 1)]
    kinds = [("full", 1), *fewer, ("cached", 1), ("cached", programs.platform.candidates)]
    jobs: list[Timed] = []
    with bars(progress) as task:
        advance = task("time single jobs", calls)
        for call in range(-WARM_UP, calls):
            row = call % len(contexts)
            for program, plans in kinds:
                seeds = tuple(call_seed(call + WARM_UP, plans, draw) for draw in range(plans))
                job = Request("cached", contexts[row : row + 1], seeds)
                began = time.perf_counter()
                made = programs.plan(program, job)
                took = time.perf_counter() - began
                if call >= 0:
                    jobs.append(Timed(program, plans, int(made.record.evaluations.sum()), took))
            if call >= 0:
                advance(1)
    return Trace(jobs=jobs)
