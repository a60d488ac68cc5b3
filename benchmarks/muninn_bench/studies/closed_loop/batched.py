"""Many episodes at once: their planning jobs share batches, their latencies come from a trace.

An episode depends on planning only through plans and latencies. Plans are the same in a batch (up
to how the network rounds one), and latencies are drawn from those of single jobs, so a study need
not make thousands of single calls. Each episode runs in a thread of its own, because a supervisor
waits for its answer; whenever every live episode waits, all their jobs are planned together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

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


class _Job(NamedTuple):
    """What the episode of a number waits for."""

    number: int
    program: str
    request: Request
    answer: Future[Reply]


def fly_all(
    programs: ClosedLoopPrograms,
    tickets: Sequence[Ticket],
    trace: Trace,
    metric: Metric,
    done: Callable[[Flight], None],
) -> None:
    """Fly episodes at once, plan in this thread; ``done`` is called with each when it is over.

    Batches are in order of episodes, so that they are the same whoever came first.

    Raises:
        BaseException: the first that an episode, ``done`` or the planner raised.
    """
    told: SimpleQueue[_Job | Future[Flight]] = SimpleQueue()
    needed = needs(programs.platform, trace)
    given = partial(fly_one, programs, latency=trace, needed=needed, metric=metric)

    def ask(number: int, program: str, request: Request) -> Reply:
        job = _Job(number, program, request, Future())
        told.put(job)
        return job.answer.result()

    with ThreadPoolExecutor(len(tickets)) as crew:
        for number, ticket in enumerate(tickets):
            crew.submit(given, ticket, plan=partial(ask, number)).add_done_callback(told.put)
        live, waiting = len(tickets), list[_Job]()
        failed: BaseException | None = None
        while live:
            try:
                heard = told.get()
                if isinstance(heard, _Job):
                    waiting.append(heard)
                else:
                    live -= 1
                    if failed is None:
                        done(heard.result())
                if failed is None and waiting and len(waiting) == live:
                    waiting.sort(key=lambda job: job.number)
                    plans = programs.plan_all([(job.program, job.request) for job in waiting])
                    for job, plan in zip(waiting, plans, strict=True):
                        job.answer.set_result(plan)
                    waiting = []
            except BaseException as error:  # whoever waits must be told, also of Ctrl-C
                failed = failed or error
            for job in waiting if failed is not None else ():
                if not job.answer.done():
                    job.answer.set_exception(failed)
    if failed is not None:
        raise failed


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
