"""What is compared: full compute, fewer steps, and Muninn with the paper's five escalations.

Every method is the same supervisor with the same screen: a plan that fails it is not executed. They
differ in the program that plans, in the deadline, and in what escalation may do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from muninn.certify.cached import CachedPlanner
from muninn.context import concatenate, select
from muninn.errors import InputError
from muninn.loop.escalation import VARIANTS, Escalation, Needs
from muninn.loop.request import Reply, Request, screened
from muninn.loop.supervisor import Supervisor
from muninn.record import Record
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.platform import Platform
from muninn_bench.studies.closed_loop.runner import SimulatedWorker
from muninn_bench.studies.closed_loop.traces import Trace

LEVEL, MARGIN = 0.99, 1.2
"""This quantile of recorded times, times the margin, is set aside. Not the worst, as a robot would
with :class:`muninn.loop.deadline.Times`: on a shared machine the worst is the neighbours'."""

ROWS = 64
"""Plans made at a time, to bound memory."""


@dataclass(frozen=True)
class Method:
    """One way to plan in closed loop.

    Attributes:
        name: for options and tables.
        title: in words.
        program: ``full``, ``fewsteps`` or ``cached``.
        variant: of the escalation.
        deadline: a plan that takes longer than the period leads to a hold.
        charged: planning takes simulated time.
    """

    name: str
    title: str
    program: str
    variant: str = "muninn-only"
    deadline: bool = True
    charged: bool = True


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("full-instant", "Full, given enough time", "full", deadline=False, charged=False),
        Method("full", "Full, real time", "full", deadline=False),
        Method("full-deadline", "Full, real time, held to the deadline", "full"),
        Method("fewsteps", "Fewer steps, tuned, real time", "fewsteps"),
        *(
            Method(name, title, "cached", name)
            for name, title in zip(
                VARIANTS,
                (
                    "Muninn, real time",
                    "Muninn + damping",
                    "Muninn + resampling, damping",
                    "Muninn + full override",
                    "Muninn + all three",
                ),
                strict=True,
            )
        ),
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

    Args:
        platform: its planner and screen.
        fast: the certified planner.
        fewer: the tuned alternative with as many evaluations; None where no method asks for it.
    """

    def __init__(
        self, platform: Platform, fast: CachedPlanner, fewer: Alternative | None = None
    ) -> None:
        if fast.certificate is None:
            raise InputError(f"the certificate cannot be used: {fast.reason}")
        self.platform = platform
        self.fast = fast
        self.fewer = fewer
        self._runs: dict[str, Run] = {
            "full": plain(platform.planner),
            "cached": lambda context, noise: fast(context, noise=noise),
        }
        if fewer is not None:
            self._runs["fewsteps"] = fewer.run(platform.planner)

    def plan(self, program: str, job: Request) -> Reply:
        """The plans of one robot, by themselves."""
        return self.plan_all([(program, job)])[0]

    def plan_all(self, asked: Sequence[tuple[str, Request]]) -> list[Reply]:
        """The plans of many robots, those of one program in one batch.

        Noise depends on seeds alone, so this equals the plans made one by one, up to how the
        network rounds a batch.
        """
        found: dict[int, Reply] = {}
        unknown = {name for name, _ in asked} - set(self._runs)
        if unknown:
            raise InputError(
                f"no program {', '.join(sorted(unknown))} was prepared; fewer steps are tuned by "
                "`muninn-bench fly --study` or `--method fewsteps`"
            )
        for program, run in self._runs.items():
            places = [place for place, (name, _) in enumerate(asked) if name == program]
            for chunk in _chunks(places, [len(asked[place][1].seeds) for place in places]):
                jobs = [asked[place][1] for place in chunk]
                found.update(zip(chunk, self._batch(run, jobs), strict=True))
        return [found[place] for place in range(len(asked))]

    def _batch(self, run: Run, jobs: list[Request]) -> list[Reply]:
        contexts = [select(job.context, torch.zeros(len(job.seeds)).long()) for job in jobs]
        seeds = [seed for job in jobs for seed in job.seeds]
        noise = self.platform.planner.draw_noise(seeds=seeds)
        trajectories, record = run(concatenate(contexts), noise)
        plans, at = [], 0
        for job in jobs:
            rows = slice(at, at := at + len(job.seeds))
            plans.append(
                screened(
                    trajectories[rows], rows_of(record, rows), self.platform.screen, job.context
                )
            )
        return plans


def rows_of(record: Record, rows: slice) -> Record:
    """The record of some rows of a batch."""
    parts = {item.name: getattr(record, item.name) for item in fields(record)}
    changed = {
        name: value[rows]
        for name, value in parts.items()
        if name != "seconds" and value is not None
    }
    return replace(record, **changed)


def _chunks(places: list[int], sizes: list[int]) -> list[list[int]]:
    """Consecutive places whose sizes add up to at most ROWS, at least one each."""
    chunks: list[list[int]] = []
    room = 0
    for place, size in zip(places, sizes, strict=True):
        if not chunks or size > room:
            chunks.append([])
            room = ROWS
        chunks[-1].append(place)
        room -= size
    return chunks


def needs(platform: Platform, trace: Trace) -> Needs:
    """What new samples and full compute must be given, from recorded times.

    The certified plan itself is always tried: not to plan is a hold for sure.
    """
    return Needs(
        0.0,
        MARGIN * trace.quantile(LEVEL, "cached", platform.candidates),
        MARGIN * trace.quantile(LEVEL, "full", 1),
    )


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
