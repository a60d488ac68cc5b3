"""Many episodes at once: their planning jobs share batches, their latencies come from a trace.

What an episode does depends on planning only through plans and latencies. Reply are the same in a
batch (up to how the network rounds one), and latencies are drawn from what single jobs took. So a
study of thousands of calls needs no thousands of single calls. Each episode runs in a thread of its
own, because a supervisor waits for its answer; whenever every live episode waits, all their jobs
are planned together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muninn.certify.metrics import Metric, measure
from muninn.certify.paired import call_seed
from muninn.loop.escalation import Needs
from muninn.loop.request import Reply, Request
from muninn_bench.studies.closed_loop.loop import Flight, Loop, Watcher
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms, Method, needs, supervisor
from muninn_bench.studies.closed_loop.runner import Plan, SimulatedWorker
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

    def __init__(self, programs: ClosedLoopPrograms, live: int) -> None:
        self._programs = programs
        self._live = live
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[str, Request]] = {}
        self._answers: dict[int, Reply] = {}
        self._closed: BaseException | None = None

    def plan(self, number: int, program: str, job: Request) -> Reply:
        """The plans of the episode ``number``; waits until everyone else waits as well.

        Raises:
            BaseException: what ended :meth:`serve`.
        """
        with self._changed:
            self._waiting[number] = (program, job)
            self._changed.notify_all()
            self._changed.wait_for(lambda: number in self._answers or self._closed is not None)
            if self._closed is not None:
                raise self._closed
            return self._answers.pop(number)

    def leave(self) -> None:
        """An episode's thread is done."""
        with self._changed:
            self._live -= 1
            self._changed.notify_all()

    def serve(self) -> None:
        """Plan for the episodes until the last has left; runs in the caller's thread."""
        try:
            while asked := self._everyone():
                answers = self._programs.plan_all(list(asked.values()))
                with self._changed:
                    self._answers.update(zip(asked, answers, strict=True))
                    self._changed.notify_all()
        except BaseException as error:  # whoever waits must be told, also of Ctrl-C
            with self._changed:
                self._closed = error
                self._changed.notify_all()
            raise

    def _everyone(self) -> dict[int, tuple[str, Request]]:
        """The jobs of all live episodes, once all wait; none when none is left.

        In order of episodes, so that batches are the same whoever came first.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) == self._live)
            asked = dict(sorted(self._waiting.items()))
            self._waiting.clear()
        return asked


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
        Exception: the first that an episode or the planner raised.
    """
    remaining = iter(enumerate(tickets))
    lock = threading.Lock()
    failures: list[BaseException] = []
    needed = needs(programs.platform, trace)
    count = min(live, len(tickets))
    pool = Pool(programs, count)

    def work() -> None:
        try:
            while not failures:
                with lock:
                    number, ticket = next(remaining, (-1, None))
                if ticket is None:
                    return
                ask = _numbered(pool, number)
                flight = fly_drawn(programs, ticket, trace, needed, metric, ask)
                with lock:
                    done(flight)
        except BaseException as error:
            failures.append(error)
        finally:
            pool.leave()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    pool.serve()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _numbered(pool: Pool, number: int) -> Plan:
    return lambda program, job: pool.plan(number, program, job)


def fly_drawn(
    programs: ClosedLoopPrograms,
    ticket: Ticket,
    trace: Trace,
    needed: Needs,
    metric: Metric,
    plan: Plan | None = None,
) -> Flight:
    """One episode with latencies drawn from a trace, by its seed; the same for every method."""
    latency = Drawn(trace, call_seed(ticket.seed, 7)) if ticket.method.charged else instant
    return fly_one(programs, ticket, latency, needed, metric=metric, plan=plan)


def fly_one(
    programs: ClosedLoopPrograms,
    ticket: Ticket,
    latency: Latency,
    needed: Needs,
    *,
    metric: Metric | None = None,
    plan: Plan | None = None,
    watcher: Watcher | None = None,
) -> Flight:
    """Fly one episode.

    Args:
        programs: what plans.
        ticket: which episode.
        latency: what planning takes.
        needed: what escalation must be given; see :func:`needs`.
        metric: measures how far one call, drawn at random, is from full compute; None does not.
        plan: where plans are computed; ``programs`` itself, job by job, by default.
        watcher: looks on.
    """
    method, seed = ticket.method, ticket.seed
    ask = plan or programs.plan
    worker = SimulatedWorker(ask, latency, "cached" if method.program == "full" else method.program)
    robot = supervisor(method, programs.platform, worker, needed, call_seed(seed, 1))
    loop = Loop(programs.platform, robot, worker, method.name, watcher)
    flight = loop.fly(seed)
    if metric is None or method.program == "full":
        return flight
    # One random call of a random episode: calls inside an episode depend on each other.
    drawn = int(np.random.default_rng(call_seed(seed, 2)).random() * len(loop.asked))
    context, command = loop.asked[drawn]
    if command.plan is None or command.seed is None:
        return replace(flight, deviation=0.0)  # a hold executes no plan, so none deviates
    full = ask("full", Request("full", context, (command.seed,))).trajectories
    found = measure(metric, full, command.plan[None].to(full.dtype))
    return replace(flight, deviation=float(found[0]))
