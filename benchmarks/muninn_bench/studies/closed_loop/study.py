"""The study of one platform: certificate, latencies, then episodes of every method.

Everything measured is kept at once: the certificate and its contexts, the latency trace, and each
episode in a journal as soon as it is over. Started again, the study goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import queue
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from muninn.certify.journal import Journal
from muninn.errors import MuninnError
from muninn.progress import bars
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.platform import Platform
from muninn_bench.studies.closed_loop.batched import Ticket, fly_all
from muninn_bench.studies.closed_loop.certified import (
    TUNED_ON,
    certify,
    load_fast,
    position_metric,
    scout,
    tune_fewer,
)
from muninn_bench.studies.closed_loop.loop import Flight
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms, find_method
from muninn_bench.studies.closed_loop.on_gpu import evaluate_on_gpu
from muninn_bench.studies.closed_loop.processes import end_with_parent
from muninn_bench.studies.closed_loop.settings import Settings
from muninn_bench.studies.closed_loop.timing import measure_trace
from muninn_bench.studies.closed_loop.traces import Trace

STUDIED = 1_000_000
"""First seed of the studied episodes."""

Build = Callable[[], Platform]


@dataclass(frozen=True)
class Paths:
    """Where a study keeps what it measured.

    Attributes:
        certificate: the certificate file.
        trace: single-job latencies.
        work: folder of scouted contexts and journals, not to be committed.
    """

    certificate: Path
    trace: Path
    work: Path

    @property
    def fewer(self) -> Path:
        """The tuned alternative: beside the latencies, which are its own too."""
        return self.trace.with_name("fewer.json")

    @property
    def journal(self) -> Path:
        """Finished episodes."""
        return self.work / "episodes.jsonl"


def prepare(
    build: Build, settings: Settings, paths: Paths, *, fewer: bool = True
) -> ClosedLoopPrograms:
    """The platform with its certified planner; certifies first where there is no certificate.

    Args:
        build: the platform.
        settings: how much.
        paths: where things are kept.
        fewer: whether fewer steps will be flown; they are tuned where they are not yet.
    """
    platform = build()
    if not paths.certificate.exists():
        journal = paths.work / "calibration.jsonl"
        contexts = scout(build, settings, paths.work)
        certify(platform, settings, contexts, journal).save(paths.certificate)
        journal.unlink()
    fast = load_fast(platform, paths.certificate)
    if fewer and not paths.fewer.exists():
        known = scout(build, replace(settings, scouts=min(settings.scouts, TUNED_ON)), paths.work)
        found = tune_fewer(platform, fast, known, settings)
        paths.fewer.parent.mkdir(parents=True, exist_ok=True)
        paths.fewer.write_text(json.dumps(found.to_json()) + "\n")
    return ClosedLoopPrograms(platform, fast, load_fewer(paths))


def load_fewer(paths: Paths) -> Alternative | None:
    """The tuned alternative, if there is one."""
    if not paths.fewer.exists():
        return None
    return Alternative.from_json(json.loads(paths.fewer.read_text()))


def run_study(
    build: Build, programs: ClosedLoopPrograms, settings: Settings, paths: Paths
) -> tuple[list[Flight], Trace]:
    """Fly every episode of every method that the journal does not hold yet.

    Args:
        build: the platform, anew in every process.
        programs: from :func:`prepare`.
        settings: how much.
        paths: where it is kept.
    """
    if not paths.trace.exists():
        contexts = scout(build, settings, paths.work)
        measure_trace(programs, contexts, settings.timed).save(paths.trace)
    trace = Trace.load(paths.trace)
    journal = Journal(paths.journal, _identity(programs, paths))
    tickets = [
        Ticket(find_method(name), STUDIED + number)
        for name in settings.methods
        for number in range(settings.episodes)
    ]
    with bars(True) as task:
        advance = {name: task(name, settings.episodes) for name in settings.methods}
        missing = []
        for ticket in tickets:
            if journal.get(_key(ticket.method.name, ticket.seed)) is None:
                missing.append(ticket)
            else:
                advance[ticket.method.name](1)

        def done(flight: Flight) -> None:
            journal.put(_key(flight.method, flight.seed), flight.to_json())
            advance[flight.method](1)

        if settings.processes == 1:
            metric = position_metric(programs.platform)
            fly_all(programs, missing, trace, metric, done, settings.live)
        else:
            _fly_in_processes(build, settings, paths, missing, done)
    kept = (journal.get(_key(ticket.method.name, ticket.seed)) for ticket in tickets)
    return [Flight.from_json(flight) for flight in kept if flight is not None], trace


def _key(method: str, seed: int) -> str:
    return f"{method}/{seed}"


def _identity(programs: ClosedLoopPrograms, paths: Paths) -> dict[str, Any]:
    """What the episodes depend on; a journal of others is refused."""
    return {
        "platform": programs.platform.name,
        "period": programs.platform.period,
        "planner": programs.platform.planner.identity(),
        "certificate": _digest(paths.certificate),
        "latencies": _digest(paths.trace),
        "fewer": _digest(paths.fewer) if paths.fewer.exists() else None,
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# -- processes ---------------------------------------------------------------------------------


def _fly_in_processes(
    build: Build,
    settings: Settings,
    paths: Paths,
    tickets: list[Ticket],
    done: Callable[[Flight], None],
) -> None:
    """Share the episodes between processes; ``done`` is called here, with each that is over."""
    context = multiprocessing.get_context("spawn")
    arrived: Any = context.Queue()
    # In turn, so that every process has its part of the slow methods.
    parts = [tickets[first :: settings.processes] for first in range(settings.processes)]
    start = partial(_work, arrived, build, paths, settings.live)
    crew = [context.Process(target=start, args=(part,), daemon=True) for part in parts if part]
    for process in crew:
        process.start()
    try:
        for _ in tickets:
            done(Flight.from_json(_receive(arrived, crew)))
    finally:
        for process in crew:
            process.terminate()
            process.join()


def _receive(arrived: Any, crew: list[Any]) -> dict[str, Any]:
    while True:
        try:
            message: dict[str, Any] | str = arrived.get(timeout=2.0)
        except queue.Empty:
            if any(process.exitcode not in (None, 0) for process in crew):
                raise MuninnError(
                    "a process of the study died; what was flown is kept: run the command again"
                ) from None
            continue
        if isinstance(message, str):
            raise MuninnError(f"an episode failed: {message}")
        return message


def _work(arrived: Any, build: Build, paths: Paths, live: int, tickets: list[Ticket]) -> None:
    """One process: its own platform, planner and threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends us
    end_with_parent()
    torch.set_num_threads(1)
    try:
        platform = build()
        evaluate_on_gpu(platform.planner)  # first: a planner that changes once cached runs full
        fast = load_fast(platform, paths.certificate)
        programs = ClosedLoopPrograms(platform, fast, load_fewer(paths))
        trace = Trace.load(paths.trace)
        metric = position_metric(platform)

        def done(flight: Flight) -> None:
            arrived.put(flight.to_json())

        fly_all(programs, tickets, trace, metric, done, live)
    except BaseException as error:
        arrived.put(f"{type(error).__name__}: {error}")
