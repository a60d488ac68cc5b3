"""What is compared: full compute, fewer steps, and Muninn with the paper's five escalations.

Every method is the same supervisor with the same screen: a plan that fails it is not executed. They
differ in the program that plans, in the deadline, and in what escalation may do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from muninn.certify.cached import CachedPlanner
from muninn.certify.certificate import Certificate
from muninn.certify.paired import call_seed
from muninn.context import concatenate, select
from muninn.errors import InputError
from muninn.loop.escalation import VARIANTS, Escalation, Needs
from muninn.loop.request import Reply, Request, screened
from muninn.loop.supervisor import Supervisor
from muninn.progress import bars
from muninn.record import Record
from muninn_bench.measure.alternatives import FEWSTEPS, Alternative
from muninn_bench.measure.matched import mean_evaluations
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.measure.turns import take_turns
from muninn_bench.platform import Platform
from muninn_bench.studies.closed_loop.loop import SimulatedWorker
from muninn_bench.studies.closed_loop.traces import Timed, Trace

LEVEL, MARGIN = 0.99, 1.2
"""This quantile of recorded times, times the margin, is set aside. Not the worst, as a robot would
with :class:`muninn.loop.deadline.Times`: on a shared machine the worst is the neighbours'."""

WARM_UP = 3
"""Jobs of each program before they are timed."""


@dataclass(frozen=True)
class Method:
    """One way to plan in closed loop."""

    name: str
    title: str
    program: str  # full, fewsteps or cached
    variant: str = "muninn-only"  # of the escalation
    deadline: bool = True  # a plan that takes longer than the period leads to a hold
    charged: bool = True  # planning takes simulated time


_ESCALATIONS = {
    "muninn-only": "Muninn",
    "dampen": "Muninn + damping",
    "resample+dampen": "Muninn + resampling, damping",
    "full-override": "Muninn + full override",
    "combined": "Muninn + all three",
}
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("full-instant", "Full, given enough time", "full", deadline=False, charged=False),
        Method("full", "Full, real time", "full", deadline=False),
        Method("full-deadline", "Full, real time, held to the deadline", "full"),
        Method("fewsteps", "Fewer steps", "fewsteps"),
        *(Method(name, title, "cached", name) for name, title in _ESCALATIONS.items()),
    )
}


def find_method(name: str) -> Method:
    """The method of a name.

    Raises:
        InputError: there is none; lists them.
    """
    if name not in METHODS:
        raise InputError(f"no method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]


class ClosedLoopPrograms:
    """Full compute, fewer steps and the certified program, for one robot or many at once.

    ``fewer`` is the tuned alternative with as many evaluations; None spreads that many of the
    sampler's own steps evenly.
    """

    def __init__(
        self, platform: Platform, fast: CachedPlanner, fewer: Alternative | None = None
    ) -> None:
        if fast.certificate is None:
            raise InputError(f"the certificate cannot be used: {fast.reason}")
        self.platform, planner = platform, platform.planner
        self.certificate: Certificate = fast.certificate
        self.fewer = fewer or Alternative.untuned(
            FEWSTEPS, planner, mean_evaluations(self.certificate)
        )
        self._runs: dict[str, Run] = {
            "full": plain(planner),
            "fewsteps": self.fewer.run(planner),
            "cached": lambda context, noise: fast(context, noise=noise),
        }

    def plan(self, program: str, job: Request) -> Reply:
        """The plans of one robot, by themselves."""
        return self.plan_all([(program, job)])[0]

    def plan_all(self, asked: Sequence[tuple[str, Request]]) -> list[Reply]:
        """The plans of many robots, those of one program in one batch.

        Noise depends on seeds alone, so this equals the plans made one by one, up to how the
        network rounds a batch.
        """
        found: dict[int, Reply] = {}
        for program in dict.fromkeys(name for name, _ in asked):
            jobs = {at: job for at, (name, job) in enumerate(asked) if name == program}
            replies = self._batch(self._runs[program], list(jobs.values()))
            found.update(zip(jobs, replies, strict=True))
        return [found[place] for place in range(len(asked))]

    def _batch(self, run: Run, jobs: list[Request]) -> list[Reply]:
        contexts = [select(job.context, torch.zeros(len(job.seeds)).long()) for job in jobs]
        seeds = [seed for job in jobs for seed in job.seeds]
        noise = self.platform.planner.draw_noise(seeds=seeds)
        trajectories, record = run(concatenate(contexts), noise)
        plans, at = [], 0
        for job in jobs:
            rows = slice(at, at := at + len(job.seeds))
            part = rows_of(record, rows)
            plans.append(screened(trajectories[rows], part, self.platform.screen, job.context))
        return plans


def rows_of(record: Record, rows: slice) -> Record:
    """The record of some rows of a batch."""
    parts = {item.name: getattr(record, item.name) for item in fields(record)}
    kept = {k: v[rows] for k, v in parts.items() if k != "seconds" and v is not None}
    return replace(record, **kept)


def measure_trace(programs: ClosedLoopPrograms, contexts: Tensor, calls: int) -> Trace:
    """Time single jobs of every program and of new samples, screening included, after a warm-up.

    ``contexts`` (count, ...) are taken in turn; every kind of job is timed ``calls`` times.
    """
    single = [(program, 1) for program in ("full", "fewsteps", "cached")]
    kinds = [*single, ("cached", programs.platform.candidates)]

    def run(kind: tuple[str, int], call: int) -> int:
        program, plans = kind
        row = call % len(contexts)
        seeds = tuple(call_seed(call + WARM_UP, plans, draw) for draw in range(plans))
        made = programs.plan(program, Request("cached", contexts[row : row + 1], seeds))
        return int(made.record.evaluations.sum())

    with bars(True) as task:
        turns = take_turns(
            [partial(run, kind) for kind in kinds],
            warm_up=WARM_UP,
            timed=calls,
            device=programs.platform.planner.device,
            advance=task("time single jobs", WARM_UP + calls),
        )
    by_kind = zip(kinds, turns, strict=True)
    return Trace(
        jobs=[Timed(*kind, one.result, one.seconds) for kind, own in by_kind for one in own]
    )


def needs(platform: Platform, trace: Trace) -> Needs:
    """What new samples and full compute must be given, from recorded times.

    The certified plan has no time threshold: skipping it always means holding.
    """
    resampled = MARGIN * trace.quantile(LEVEL, "cached", platform.candidates)
    return Needs(0.0, resampled, MARGIN * trace.quantile(LEVEL, "full", 1))


def supervisor(
    method: Method, platform: Platform, worker: SimulatedWorker, needed: Needs, seed: int
) -> Supervisor:
    """The supervisor of one episode."""
    machine = Escalation(candidates=platform.candidates, allowed=VARIANTS[method.variant])
    budget = platform.period if method.deadline else math.inf
    made = Supervisor(worker, machine, budget=budget, needs=needed, seed=seed)
    if method.program == "full":
        made.alarm = "planned with full compute"
    return made
