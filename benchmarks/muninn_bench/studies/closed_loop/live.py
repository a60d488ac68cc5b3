"""Flights here and now: planned at batch 1 with the latencies of this machine, or replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from muninn.errors import InputError
from muninn.loop.deadline import machine
from muninn.loop.escalation import Needs
from muninn.progress import bars
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight
from muninn_bench.studies.closed_loop.methods import (
    ClosedLoopPrograms,
    find_method,
    measure_trace,
    needs,
)
from muninn_bench.studies.closed_loop.tables import method_rows
from muninn_bench.studies.closed_loop.traces import Latency, Replayed, measured, write_lines
from muninn_bench.studies.closed_loop.view import View
from muninn_bench.studies.closed_loop.write import print_rows

_TIMED = 8  # single jobs, for what escalation must be given


def fly_live(
    console: Console,
    programs: ClosedLoopPrograms,
    methods: Sequence[str],
    episodes: int,
    view: bool,
    replay: Path | None,
) -> None:
    """Plan at batch 1 here and now, with the latency that has; or as a recorded file says."""
    platform, folder = programs.platform, Path("runs/fly") / programs.platform.name
    asked = [Ticket(find_method(name), seed) for name in methods for seed in range(episodes)]
    watcher = View(platform, programs.certificate, folder) if view else None
    jobs: list[tuple[Ticket, Latency]]
    if replay is not None:
        needed, recorded = read_flights(replay)
        jobs = [(Ticket(find_method(one.method), one.seed), Replayed(one.jobs)) for one in recorded]
    else:
        first = torch.cat([platform.begin(seed).context() for seed in range(_TIMED)])
        needed = needs(platform, measure_trace(programs, first, _TIMED))
        jobs = [(ticket, measured) for ticket in asked]
    flights = []
    with bars(True) as task:
        advance = task(f"fly {platform.name}", len(jobs))
        for ticket, latency in jobs:
            flights.append(fly_one(programs, ticket, latency, needed, watcher=watcher))
            advance(1)
    if replay is not None:
        same = sum(one == other for one, other in zip(flights, recorded, strict=True))
        console.print(f"{same} of {len(flights)} flights are reproduced exactly")
    else:
        out = folder / "flights.jsonl"
        write_flights(out, flights, needed)
        console.print(f"latencies and calls: {out}; fly them again with --replay {out}")
    for path in watcher.written if watcher is not None else ():
        console.print(f"wrote {path}")
    print_rows(console, method_rows(flights, programs.certificate))


def write_flights(path: Path, flights: Sequence[Flight], needed: Needs) -> None:
    """Keep flights so that they can be flown again."""
    write_lines(path, {"machine": machine(), "needs": asdict(needed)}, flights)


def read_flights(path: Path) -> tuple[Needs, list[Flight]]:
    """The flights of a file, and what escalation was given in them.

    Raises:
        InputError: the file is missing or is none.
    """
    try:
        header, *lines = map(json.loads, path.read_text().splitlines())
        return Needs(**header["needs"]), [Flight.from_json(line) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no recorded flights ({error}); fly without --replay") from error
