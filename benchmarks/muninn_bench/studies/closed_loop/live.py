"""Flights here and now: planned at batch 1 with the latencies of this machine, or replayed.

They can be recorded for rerun: map, plan, path, evaluations, bound, clearance, mode and latency.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn.errors import InputError
from muninn.loop.deadline import machine
from muninn.loop.escalation import Needs
from muninn.progress import bars
from muninn_bench.platform import Episode, Platform, Snapshot
from muninn_bench.report.rerun_file import GREY, RerunFile, rerun_package
from muninn_bench.studies.closed_loop import methods
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall, Recorder
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms, find_method
from muninn_bench.studies.closed_loop.pictures import draw_gif
from muninn_bench.studies.closed_loop.tables import bound_of, method_rows
from muninn_bench.studies.closed_loop.traces import Latency, Replayed, measured, write_lines
from muninn_bench.studies.closed_loop.write import describe_fewer, print_rows

_TIMED = 8  # single jobs, for what escalation must be given
_MODES = {"nominal": 0, "damp": 1, "resample": 2, "full": 3}
_RED, _BLUE, _ORANGE = "#c0392b", "#1f66b0", "#d1782a"


class View(Recorder):
    """Records a flight for rerun, in an .rrd file.

    Raises:
        InputError: rerun is not installed.
    """

    def __init__(self, platform: Platform, certificate: Certificate, folder: Path) -> None:
        rerun_package()  # refused before anything flies
        super().__init__(platform)
        self._bound, self._folder = bound_of(certificate), folder

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        """Start the recording."""
        super().begin(episode, method, seed)
        self.path = self._folder / f"{self.platform.name}-{method}-{seed}.rrd"
        self._shown = RerunFile(self.path)
        self._shown.lines("world/obstacles", self.world, GREY, static=True)
        self._shown.point("world/goal", self.goal, _RED, static=True)
        self._shown.say(f"{method}, episode {seed}")
        self._show(self.seen[0].snapshot)

    def moment(self, snapshot: Snapshot) -> None:
        """Show the robot and the way it has come."""
        super().moment(snapshot)
        self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self._shown.time(snapshot.time)
        self._shown.point("world/robot", snapshot.position, _BLUE)
        come = np.array([one.snapshot.position for one in self.seen])
        self._shown.lines("world/path", [come], _BLUE)
        self._shown.numbers(
            {"signals/clearance_m": snapshot.clearance, "signals/to_goal_m": snapshot.to_goal}
        )

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """Show the plan and the call's figures."""
        super().call(call, plan)
        self._shown.time(call.finished)
        self._shown.lines("world/plan", [] if self._path is None else [self._path], _ORANGE)
        figures = {
            "evaluations": call.evaluations,
            "latency_ms": 1e3 * call.seconds,
            "bound_m": self._bound(call),
            "mode": -1 if call.action == "hold" else _MODES[call.mode],
        }
        self._shown.numbers({f"call/{name}": value for name, value in figures.items()})
        self._shown.say(f"{call.action}: {call.reason or call.mode}")

    def end(self, flight: Flight) -> None:
        """Close the recording."""
        super().end(flight)
        self._shown.say(flight.outcome)
        self._shown.close()


def fly_live(
    console: Console,
    programs: ClosedLoopPrograms,
    names: Sequence[str],
    episodes: int,
    record: bool,
    replay: Path | None,
) -> None:
    """Plan at batch 1 here and now, with the latency that has; or as a recorded file says.

    The first episode is drawn, every method beside the others; the path of that GIF is told last.
    """
    platform, folder = programs.platform, Path("runs/fly") / programs.platform.name
    asked = [Ticket(find_method(name), seed) for name in names for seed in range(episodes)]
    if record:
        rerun_package()  # refused before anything flies
    jobs: list[tuple[Ticket, Latency]]
    if replay is not None:
        needed, recorded = read_flights(replay)
        jobs = [(Ticket(find_method(one.method), one.seed), Replayed(one.jobs)) for one in recorded]
    else:
        first = torch.cat([platform.begin(seed).context() for seed in range(_TIMED)])
        needed = methods.needs(platform, methods.measure_trace(programs, first, _TIMED))
        jobs = [(ticket, measured) for ticket in asked]
    flights, watched, written = [], [], []
    with bars(True) as task:
        advance = task(f"fly {platform.name}", len(jobs))
        for ticket, latency in jobs:
            watcher = Recorder(platform)
            if record:
                watcher = View(platform, programs.certificate, folder)
            flights.append(fly_one(programs, ticket, latency, needed, watcher=watcher))
            if ticket.seed == jobs[0][0].seed:
                watched.append(watcher)
            if isinstance(watcher, View):
                written.append(watcher.path)
            advance(1)
    if replay is not None:
        same = sum(one == other for one, other in zip(flights, recorded, strict=True))
        console.print(f"{same} of {len(flights)} flights are reproduced exactly")
    else:
        out = folder / "flights.jsonl"
        write_flights(out, flights, needed)
        console.print(f"latencies and calls: {out}; fly them again with --replay {out}")
    print_rows(console, method_rows(flights, programs.certificate))
    console.print(describe_fewer(programs.fewer), highlight=False)
    written.append(draw_gif(folder / "flight.gif", watched))
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


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
