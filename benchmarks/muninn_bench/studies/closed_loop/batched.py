"""Many episodes at once: their planning jobs share batches, their latencies come from a trace.

An episode depends on planning only through plans and latencies. Plans are the same in a batch (up
to how the network rounds one), and latencies are drawn from those of single jobs, so a study need
not make thousands of single calls. Each episode runs in a thread of its own, because a supervisor
waits for its answer; whenever every live episode waits, all their jobs are planned together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from muninn.certify.metrics import Metric, measure
from muninn.certify.paired import call_seed
from muninn.loop.escalation import Needs
from muninn.loop.request import Reply, Request
from muninn_bench.studies.closed_loop.loop import Flight, Plan, Recorder, SimulatedWorker, fly
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms, Method, needs, supervisor
from muninn_bench.studies.closed_loop.traces import Drawn, Latency, Trace, instant

LIVE = 48
"""Episodes that are flown at once."""


@dataclass(frozen=True)
class Ticket:
    """An episode to be flown."""

    method: Method
    seed: int


class Pool:
    """Collects the jobs of live episodes until all of them wait, then plans them together."""

    def __init__(self, programs: ClosedLoopPrograms, episodes: int, live: int) -> None:
        self._programs, self._left, self._most = programs, episodes, live
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[str, Request, Future[Reply]]] = {}
        self._closed: BaseException | None = None

    def plan(self, number: int, program: str, job: Request) -> Reply:
        """The plans of an episode, once all others wait as well; raises what closed the pool."""
        answer: Future[Reply] = Future()
        with self._changed:
            if self._closed is not None:
                raise self._closed
            self._waiting[number] = (program, job, answer)
            self._changed.notify_all()
        return answer.result()

    def leave(self) -> None:
        """An episode is over; the next one takes its place."""
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def close(self, error: BaseException) -> None:
        """Plan no more; whoever waits is told why."""
        with self._changed:
            self._closed = self._closed or error
            for _, _, answer in self._waiting.values():
                answer.set_exception(self._closed)
            self._waiting.clear()
            self._changed.notify_all()

    def serve(self) -> None:
        """Plan in the caller's thread until the last episode has left.

        Batches are in order of episodes, so that they are the same whoever came first.
        """
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or len(self._waiting) == min(self._left, self._most)
                )
                asked = [self._waiting[number] for number in sorted(self._waiting)]
            if not asked:
                return
            plans = self._programs.plan_all([(program, job) for program, job, _ in asked])
            with self._changed:
                self._waiting.clear()
            for (_, _, answer), made in zip(asked, plans, strict=True):
                answer.set_result(made)


def fly_all(
    programs: ClosedLoopPrograms,
    tickets: Sequence[Ticket],
    trace: Trace,
    metric: Metric,
    done: Callable[[Flight], None],
    live: int = LIVE,
) -> None:
    """Fly episodes in batches; ``done`` is called with each as soon as it is over.

    Raises:
        BaseException: the first that an episode, ``done`` or the planner raised.
    """
    lock = threading.Lock()
    needed = needs(programs.platform, trace)
    pool = Pool(programs, len(tickets), live)

    def work(number: int, ticket: Ticket) -> None:
        try:
            ask = partial(pool.plan, number)
            flight = fly_one(programs, ticket, trace, needed, metric=metric, plan=ask)
            with lock:
                done(flight)
        except BaseException as error:
            pool.close(error)
            raise
        finally:
            pool.leave()

    with ThreadPoolExecutor(live) as crew:
        flown = [crew.submit(work, number, ticket) for number, ticket in enumerate(tickets)]
        try:
            pool.serve()
        except BaseException as error:  # whoever waits must be told, also of Ctrl-C
            pool.close(error)
            raise
        finally:
            crew.shutdown(wait=False, cancel_futures=True)
    for future in flown:
        if not future.cancelled():
            future.result()


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
    """Fly one episode.

    Args:
        programs: plan, job by job, unless ``plan`` says otherwise.
        ticket: which episode.
        latency: of planning; drawn from a trace by the episode's seed, the same for every method.
        needed: what escalation must be given; see :func:`needs`.
        metric: measures how far one call, drawn at random, is from full compute; None does not.
        plan: where plans are computed.
        watcher: looks on.
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
