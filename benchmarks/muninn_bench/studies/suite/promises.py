"""What is promised of plans, and the programs that keep it: certified, and judged on fresh calls.

Open loop, contexts are those that a fast sampler meets, a random call of each episode; every method
is tuned, certified and tested on the same ones, as in :mod:`muninn_bench.studies.frontier`. In the
closed loop a program meets contexts of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from muninn.certify.frontier import Frontier
from muninn.certify.journal import Journal
from muninn.certify.metrics import Metric, measure, resolve, rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import require_units, scan_members
from muninn.certify.tune import frontier_family
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Map
from muninn.programs.forecast import Forecast
from muninn.programs.plan import AnyProgram, Family, Program, Static
from muninn.programs.spacing import spread_steps
from muninn.progress import Task as Bars
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.remembered import Remembered, certified_member
from muninn_bench.studies.frontier import Rescaled
from muninn_bench.studies.suite.drives import Drives
from muninn_bench.studies.suite.entrants import CONFIDENCE, RISK, Entrant, Site
from muninn_bench.task import Choosing, Stream, Task

Choice = Callable[[Tensor, Tensor], Tensor]

NORMALISED = (0.15, 0.05)
"""Tolerances of the paper's metric, in the coordinates of the network."""

CLOSED_PART = 3
"""Of the noise in the closed loop; 1 is that of open-loop calls, 2 that of driven episodes."""

BEFORE, AFTER = 2, 1
"""Members of an open-loop family that the closed loop begins before its choice, and goes on to."""


@dataclass(frozen=True)
class Promise:
    """A deviation that 5% of calls at most may exceed."""

    tolerance: float
    unit: str
    metric: Metric


def promises(task: Task, variant: str) -> list[Promise]:
    """The paper's two, and the task's own.

    Of candidates the one that is executed counts: there, too, the metric looks after the choice.
    """
    choice = choice_of(task, variant)
    if choice is None:
        metric, unit = rms_step, "rms a step of a plan, normalised"
    else:
        metric, unit = _of_chosen(choice), "rms of the executed candidate, normalised"
    own = Promise(task.tolerance, task.unit, resolve(task.metric(variant))[1])
    return [*(Promise(tolerance, unit, metric) for tolerance in NORMALISED), own]


def choice_of(task: Task, variant: str) -> Choice | None:
    """Which candidate is executed, where plans are candidates."""
    return task.choice(variant) if isinstance(task, Choosing) else None


def _of_chosen(choice: Choice) -> Metric:
    """:func:`muninn.certify.metrics.rms_step` of the executed candidates, a plan of one step."""

    def executed_candidate(full: Tensor, fast: Tensor, context: Tensor) -> Tensor:
        rows = torch.arange(len(full), device=full.device)
        chosen = [plans[rows, choice(plans, context)][:, None] for plans in (full, fast)]
        return rms_step(*chosen)

    executed_candidate.__qualname__ = "executed_candidate"
    return executed_candidate


@dataclass(frozen=True)
class Judged:
    """An entrant on fresh calls: deviation and evaluations of each, and the share of them in which
    another candidate was executed than with full compute."""

    deviation: FloatArray
    evaluations: FloatArray
    switched: float | None


def judge(paired: PairedCalls, run: Run, metric: Metric, choice: Choice | None) -> Judged:
    """Run an entrant on paired calls, in a metric."""
    found: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    own = replace(paired, metric=metric)
    for calls in own.parts(list(range(own.count))):
        context, full = own.contexts(calls), own.full(calls)
        plans, record = run(context, own.noise(calls))
        switched = np.zeros(len(calls))
        if choice is not None:
            switched = (choice(full, context) != choice(plans, context)).cpu().numpy().astype(float)
        deviation = measure(metric, full, plans.to(full.dtype), context)
        found.append((deviation, record.evaluations.astype(float), switched))
    deviation, evaluations, other = map(np.concatenate, zip(*found, strict=True))
    return Judged(deviation, evaluations, None if choice is None else float(other.mean()))


class Calls:
    """The calls that programs are tuned, certified and tested on."""

    def __init__(self, site: Site, contexts: dict[str, Tensor], seed: int) -> None:
        self._site, self._contexts, self._seed = site, contexts, seed
        kinds = {"tune": PairedCalls, "certify": Remembered, "test": PairedCalls}
        streams = {"tune": Stream.TUNE, "certify": Stream.CERTIFY, "test": Stream.TEST}
        self._paired = {
            part: self.paired(contexts[part], streams[part], kind) for part, kind in kinds.items()
        }

    def paired(
        self, contexts: Tensor, stream: Stream, kind: type[PairedCalls] = PairedCalls, part: int = 1
    ) -> PairedCalls:
        """Some contexts as calls with noise of their own, another for each part."""
        planner, metric = self._site.planner, rms_step
        seed = call_seed(self._seed, stream, part)
        rows = contexts.to(planner.device)
        return kind(planner, rows, len(rows), metric, seed, batch=self._site.rows)

    def of(self, part: str, metric: Metric) -> PairedCalls:
        """Those of one purpose, in a metric; full compute runs once for all metrics."""
        paired = self._paired[part]
        return replace(paired, metric=metric)

    @property
    def allowed(self) -> int:
        """Violations at which a certificate is still given."""
        count = len(self._contexts["certify"])
        return require_units(count, RISK, CONFIDENCE, "calls to certify") - 1


def even_family(planner: Planner, group: str | None) -> Family:
    """What stands in for a tuned family in miniatures: all evaluations but one, evenly spread."""
    sampler = planner.sampler
    full, count = Program.full(sampler.kind), len(sampler) - 1
    held = Forecast("velocity" if sampler.flow else "sample", 1)
    program: AnyProgram = Program(held, Static(spread_steps(len(sampler), count)))
    if group is not None:
        program = Alternative.untuned(group, planner, count).table
    return Family((full, program), "even")


class Search:
    """The families of one metric: ours, and each alternative's, from one search a method.

    They are searched for, or even ones where nothing is ``tuned``.
    """

    def __init__(
        self, calls: Calls, metric: Metric, journal: Journal, bar: Bars, tuned: bool = True
    ) -> None:
        self._calls, self._journal, self._bar, self._tuned = calls, journal, bar, tuned
        self._tune, self._certify = calls.of("tune", metric), calls.of("certify", metric)
        self._frontiers: dict[str | None, Rescaled] = {}

    def frontier(self, group: str | None) -> Rescaled:
        """Of one published method, or of all and ours."""
        if group not in self._frontiers:
            advance = self._bar(f"tune {group or 'muninn'}: programs", None)
            first: Frontier | None = next(iter(self._frontiers.values()), None)
            share = self._calls.allowed / self._certify.count
            self._frontiers[group] = Rescaled(
                self._tune, share, self._journal, advance, Map(), group, first
            )
        return self._frontiers[group]

    def best(self, group: str, count: int) -> AnyProgram:
        """The best program of a published method with so many evaluations."""
        if not self._tuned:
            return Alternative.untuned(group, self._tune.planner, count).table
        return self.frontier(group).best(count).program

    def certified(self, group: str | None, tolerance: float) -> tuple[Family, int]:
        """A family for a tolerance and its certified member; 0 is full compute."""
        if self._tuned:
            frontier = self.frontier(group)
            frontier.limit = tolerance
            family = frontier_family(frontier, adaptive=group is None)
        else:
            family = even_family(self._tune.planner, group)
        return family, certified_member(
            self._certify, family, tolerance, self._calls.allowed, self._bar
        )


def closed_loop_member(
    drives: Drives,
    calls: Calls,
    family: Family,
    member: int,
    promise: Promise,
    episodes: int,
) -> AnyProgram | None:
    """The last program around a member of an open-loop family that keeps a promise where it drives.

    Each program drives the episodes itself. Its deviation is measured at a random call of each: the
    noise of a call has no part in its context, so it may be drawn again. None is full compute.
    """
    programs = family.programs[max(1, member - BEFORE) : member + AFTER + 1]
    first = calls.of("certify", promise.metric).count  # those before chose the member
    allowed = require_units(episodes, RISK, CONFIDENCE, "episodes to certify") - 1

    def excess(program: AnyProgram) -> Iterator[FloatArray]:
        entrant = Entrant.of(program)
        driven = drives.of("in the closed loop", entrant, Stream.CERTIFY, episodes, first)
        paired = calls.paired(driven.contexts[:, 0], Stream.CERTIFY, part=CLOSED_PART)
        judged = judge(paired, entrant.run(drives.site), promise.metric, None)
        yield judged.deviation / promise.tolerance

    found = scan_members(map(excess, programs), episodes, allowed, running=False)
    return programs[found.accepted - 1] if found.accepted else None
