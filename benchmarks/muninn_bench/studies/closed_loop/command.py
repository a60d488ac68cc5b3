"""The command `muninn-bench fly`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from muninn.errors import InputError

if TYPE_CHECKING:
    from muninn.loop.escalation import Needs
    from muninn_bench.studies.closed_loop.loop import Flight
    from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms
    from muninn_bench.studies.closed_loop.settings import Settings
    from muninn_bench.studies.closed_loop.study import Build, Paths
    from muninn_bench.studies.closed_loop.tables import Row

_TIMED = 8  # single jobs, for what escalation must be given
_LIVE = ("full", "muninn-only", "combined")
_HEADINGS = ("method", "success", "collided", "goal s", "NFE", "p50/p99 ms", "held", "escalated")


def fly(
    platform: Annotated[str, typer.Option(help="crazyflie, asv or maze2d.")],
    episodes: Annotated[int, typer.Option(help="Episodes of each method.")] = 20,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, may be repeated; full, muninn-only, combined."),
    ] = None,
    view: Annotated[
        bool, typer.Option(help="Show flights in rerun; files without screen.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Fly a recorded file again, with its latencies.")
    ] = None,
    calibrate: Annotated[bool, typer.Option(help="Make the certificate anew, and stop.")] = False,
    study: Annotated[bool, typer.Option(help="The whole comparison, in batches; resumes.")] = False,
    quick: Annotated[bool, typer.Option(help="Everything in miniature, under runs/.")] = False,
) -> None:
    """Fly a simulated robot whose clock runs while it plans: a slow planner flies an old plan."""
    from muninn_bench.registry import load_platform
    from muninn_bench.studies.closed_loop.settings import settings_for
    from muninn_bench.studies.closed_loop.study import prepare

    console = Console()
    build = partial(load_platform, platform)
    settings = settings_for(platform, quick)
    if episodes < 1:
        raise InputError(f"--episodes is at least 1, got {episodes}")
    paths = _paths(platform, quick)
    if calibrate and paths.certificate.exists():  # else one was interrupted: it goes on
        build()  # a platform that cannot be built must not cost the certificate
        for path in (paths.certificate, *paths.work.glob("scouts*")):
            path.unlink()
    programs = prepare(build, settings, paths, fewer=study or "fewsteps" in (method or ()))
    certificate = programs.fast.certificate
    assert certificate is not None
    console.print(certificate.promise())
    if calibrate:
        console.print(f"wrote {paths.certificate}")
    elif study:
        _study(console, build, programs, settings, paths)
    else:
        _fly_live(console, programs, method or list(_LIVE), episodes, view, replay)


def _paths(platform: str, quick: bool) -> Paths:
    from muninn_bench.studies.closed_loop.certified import certificate_path
    from muninn_bench.studies.closed_loop.study import Paths

    if quick:
        folder = Path("runs/closed-loop-quick") / platform
        return Paths(folder / "certificate.safetensors", folder / "latency.jsonl", folder)
    results = Path("results/closed-loop") / platform
    work = Path("runs/closed-loop") / platform
    return Paths(certificate_path(platform), results / "latency.jsonl", work)


def _study(
    console: Console, build: Build, programs: ClosedLoopPrograms, settings: Settings, paths: Paths
) -> None:
    """Fly what is missing, write everything."""
    from muninn_bench.studies.closed_loop.study import run_study
    from muninn_bench.studies.closed_loop.write import write_results

    flights, trace = run_study(build, programs, settings, paths)
    command = shlex.join(["muninn", *sys.argv[1:]])
    out = paths.trace.parent
    _print(console, write_results(out, programs, flights, trace, command))
    console.print(f"wrote {out}")


def _fly_live(
    console: Console,
    programs: ClosedLoopPrograms,
    methods: Sequence[str],
    episodes: int,
    view: bool,
    replay: Path | None,
) -> None:
    """Plan at batch 1 here and now, with the latency that has; or as a file says."""
    import torch

    from muninn.progress import bars
    from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
    from muninn_bench.studies.closed_loop.methods import find_method, needs
    from muninn_bench.studies.closed_loop.tables import method_row, of_method
    from muninn_bench.studies.closed_loop.timing import measure_trace
    from muninn_bench.studies.closed_loop.traces import Latency, Replayed, measured
    from muninn_bench.studies.closed_loop.view import View

    certificate = programs.fast.certificate
    assert certificate is not None and certificate.tolerance is not None
    platform = programs.platform
    found = [find_method(name) for name in methods]
    watcher = View(platform, certificate, Path("runs/fly") / platform.name) if view else None
    latencies: list[Latency]
    if replay is not None:
        needed, recorded = read_flights(replay)
        tickets = [Ticket(find_method(flight.method), flight.seed) for flight in recorded]
        latencies = [Replayed(flight.jobs) for flight in recorded]
    else:
        first = torch.cat([platform.begin(seed).context() for seed in range(_TIMED)])
        needed = needs(platform, measure_trace(programs, first, _TIMED))
        tickets = [Ticket(one, seed) for one in found for seed in range(episodes)]
        recorded, latencies = [], [measured] * len(tickets)
    flights = []
    with bars(True) as task:
        advance = task(f"fly {platform.name}", len(tickets))
        for ticket, latency in zip(tickets, latencies, strict=True):
            flights.append(fly_one(programs, ticket, latency, needed, watcher=watcher))
            advance(1)
    if replay is not None:
        same = sum(one == other for one, other in zip(flights, recorded, strict=True))
        console.print(f"{same} of {len(flights)} flights are reproduced exactly")
    else:
        out = Path("runs/fly") / platform.name / "flights.jsonl"
        write_flights(out, flights, needed)
        console.print(f"latencies and calls: {out}; fly them again with --replay {out}")
    for path in watcher.written if watcher is not None else ():
        console.print(f"wrote {path}")
    names = dict.fromkeys(flight.method for flight in flights)
    tolerance, risk = certificate.tolerance, certificate.risk
    _print(console, [method_row(of_method(flights, name), tolerance, risk) for name in names])


def write_flights(path: Path, flights: Sequence[Flight], needed: Needs) -> None:
    """Keep flights so that they can be flown again."""
    from muninn.loop.deadline import machine

    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"machine": machine(), "needs": asdict(needed)})]
    path.write_text("\n".join([*lines, *(json.dumps(f.to_json()) for f in flights)]) + "\n")


def read_flights(path: Path) -> tuple[Needs, list[Flight]]:
    """The flights of a file, and what escalation was given in them.

    Raises:
        InputError: the file is missing or is none.
    """
    from muninn.loop.escalation import Needs
    from muninn_bench.studies.closed_loop.loop import Flight

    try:
        header, *lines = path.read_text().splitlines()
        needed = Needs(**json.loads(header)["needs"])
        return needed, [Flight.from_json(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no recorded flights ({error}); fly without --replay") from error


def _print(console: Console, rows: Sequence[Row]) -> None:
    """The summary for a person at a terminal."""
    table = Table(box=None, pad_edge=False)  # fits into 80 columns
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['success']:.1%}",
            f"{row['collision']:.1%}",
            f"{row['time_to_goal_s']:.2f}",
            f"{row['evaluations_per_call']:.1f}",
            f"{1e3 * row['latency_p50_s']:.0f}/{1e3 * row['latency_p99_s']:.0f}",
            f"{row['hold_rate']:.1%}",
            f"{row['escalation_rate']:.1%}",
        )
    console.print(table)
