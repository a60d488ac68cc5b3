"""Lines beside the certified ones: the published method, and alternatives at given evaluations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.paper.ghost import collect_pairs
from muninn.programs.plan import AnyProgram
from muninn.progress import Task as Bars
from muninn_bench.measure.alternatives import FEWSTEPS, Alternative, available
from muninn_bench.studies.suite.entrants import Entrant
from muninn_bench.studies.suite.lines import ALTERNATIVES, EVALUATIONS, FIDELITY, SOLVER, Line
from muninn_bench.studies.suite.promises import NORMALISED, Calls, Search, promises
from muninn_bench.task import Stream

if TYPE_CHECKING:
    from muninn_bench.studies.suite.study import Suite

COUNTS = (20, 10, 5, 3)
"""Evaluations at which alternatives drive episodes, where the sampler has more steps."""


def published_lines(suite: Suite, calls: Calls, contexts: Tensor, bar: Bars) -> None:
    """Add the lines of the published method, in its own metric, calibrated on some contexts.

    Contexts are several of each episode: the method wants more than a certificate does.
    """
    site = suite.site
    for name, probe in site.probes().items():
        for promise in promises(site.task, site.variant)[: len(NORMALISED)]:
            if not suite.lacks(name, promise):
                continue
            if not site.ghosts(name).is_file():
                (pairs,) = collect_pairs(
                    site.bare,
                    [probe],
                    contexts.to(site.bare.device),
                    seed=call_seed(suite.seed, Stream.TUNE, 4),
                    batch_size=site.rows,
                    task=bar,
                )
                pairs.save(site.ghosts(name))
            entrant = Entrant.published(name, promise.tolerance)
            line = Line(
                name,
                promise.tolerance,
                promise.unit,
                kind=entrant.kind,
                told=entrant.told,
                program="the published method",
            )
            suite.add_judged(line, promise, calls.of("test", promise.metric))


def fidelity_lines(suite: Suite, calls: Calls, bar: Bars) -> None:
    """Add alternatives at fixed evaluations, which only drive episodes: fewer steps as they come,
    evenly spread, and the solver tuned for the task's metric."""
    planner = suite.site.planner
    counts = [count for count in COUNTS if count < len(planner.sampler)]
    plain, tuned = (f"{FIDELITY}-{name}" for name in ALTERNATIVES)
    solver = SOLVER in available(planner)
    last = tuned if solver else plain
    if all(Line(last, count, EVALUATIONS) in suite.lines for count in counts):
        return
    own = promises(suite.site.task, suite.site.variant)[-1]
    with suite.journal(f"tune-{own.metric.__qualname__}") as journal:
        search = Search(calls, own.metric, journal, bar, suite.sizes.tuned)
        for count in counts:
            evenly = Alternative.untuned(FEWSTEPS, planner, count).table
            found: dict[str, AnyProgram] = {plain: evenly}
            if solver:
                found[tuned] = search.best(SOLVER, count)
            for name, program in found.items():
                line = replace(Line.of(name, count, EVALUATIONS, program), certified=False)
                suite.lines.add(replace(line, evaluations_mean=float(count)))
