"""Many episodes at once: their planning jobs share batches, their latencies come from a trace.

An episode depends on planning only through plans and latencies. Plans are the same in a batch (up
to how the network rounds one), and latencies are drawn from those of single jobs, so a study need
not make thousands of single calls: episodes run in lockstep (:mod:`muninn.certify.lockstep`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from muninn.certify.lockstep import run_together
from muninn.certify.metrics import Metric, measure
from muninn.certify.paired import call_seed
from muninn.loop.escalation import Needs
from muninn.loop.request import Reply, Request
from muninn_bench.studies.closed_loop.loop import Flight, Plan, Recorder, SimulatedWorker, fly
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms, Method, needs, supervisor
from muninn_bench.studies.closed_loop.traces import Drawn, Latency, Trace, instant


class Ticket(NamedTuple):
    """An episode to be flown."""

    method: Method
    seed: int


def fly_all(
    programs: ClosedLoopPrograms,
    tickets: Sequence[Ticket],
    trace: Trace,
    metric: Metric,
    done: Callable[[Flight], None],
) -> None:
    """Fly episodes at once, plan in this thread; ``done`` is called with each when it is over.

    Raises:
        BaseException: the first that an episode, ``done`` or the planner raised.
    """
    needed = needs(programs.platform, trace)

    def run(ask: Callable[[tuple[str, Request]], Reply], ticket: Ticket) -> Flight:
        def plan(program: str, request: Request) -> Reply:
            return ask((program, request))

        return fly_one(programs, ticket, trace, needed, metric=metric, plan=plan)

    run_together(run, tickets, lambda _, jobs: programs.plan_all(jobs), done=done)


def fly_one(
    programs: ClosedLoopPrograms,
    ticket: Ticket,
    latency: Latency | Trace,
    needed: Needs,
    *,
    metric: Metric | None = None,
    plan: Plan | None = None,
    watcher: Recorder | None = None,
) -> Flight:
    """Fly one episode; ``watcher`` looks on.

    Args:
        programs: plan, job by job, unless ``plan`` says otherwise.
        latency: of planning; drawn from a trace by the episode's seed, the same for every method.
        needed: what escalation must be given; see :func:`needs`.
        metric: measures how far one call, drawn at random, is from full compute; None does not.
    """
    method, seed, ask = ticket.method, ticket.seed, plan or programs.plan
    if isinstance(latency, Trace):
        latency = Drawn(latency, call_seed(seed, 7)) if method.charged else instant
    worker = SimulatedWorker(ask, latency, "cached" if method.program == "full" else method.program)
    robot = supervisor(method, programs.platform, worker, needed, call_seed(seed, 1))
    flight, asked = fly(programs.platform, robot, worker, seed, method.name, watcher)
    if metric is None or method.program == "full":
        return flight
    # One random call of a random episode: calls inside an episode depend on each other.
    drawn = int(np.random.default_rng(call_seed(seed, 2)).random() * len(asked))
    context, command = asked[drawn]
    if command.plan is None or command.seed is None:
        return replace(flight, deviation=0.0)  # a hold executes no plan, so none deviates
    full = ask("full", Request("full", context, (command.seed,))).trajectories
    found = measure(metric, full, command.plan[None].to(full.dtype))
    return replace(flight, deviation=float(found[0]))
