"""Flights here and now: planned at batch 1 with the latencies of this machine, or replayed.

They can be watched in rerun: map, plan, path, evaluations, Dhat, mode and latency.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from muninn_bench.studies.closed_loop import methods
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall, Recorder
from muninn_bench.studies.closed_loop.methods import ClosedLoopPrograms, find_method
from muninn_bench.studies.closed_loop.pictures import draw_gif
from muninn_bench.studies.closed_loop.tables import bound_of, method_rows
from muninn_bench.studies.closed_loop.traces import Latency, Replayed, measured, write_lines
from muninn_bench.studies.closed_loop.write import print_rows

_TIMED = 8  # single jobs, for what escalation must be given
_MODES = {"nominal": 0, "damp": 1, "resample": 2, "full": 3}
_GREY, _RED, _BLUE, _ORANGE = [90, 90, 90], [192, 57, 43], [31, 102, 176], [209, 120, 42]


def has_screen() -> bool:
    """Whether a window can be opened here."""
    return os.name == "nt" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class View(Recorder):
    """Streams flights to rerun's window; without a screen writes files instead.

    Those are an .rrd of every flight, and a GIF of the first flight of each method.

    Raises:
        InputError: rerun is not installed.
    """

    def __init__(self, platform: Platform, certificate: Certificate, folder: Path) -> None:
        try:
            import rerun
        except ImportError as error:
            raise InputError("--view needs rerun: pip install 'muninn-bench[viz]'") from error
        super().__init__(platform)
        self._rerun: Any = rerun
        self._certificate, self._bound, self._folder = certificate, bound_of(certificate), folder
        self._live = has_screen()
        self.written: list[Path] = []
        self._drawn: set[str] = set()

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        """Start a recording of its own for every flight."""
        super().begin(episode, method, seed)
        name = f"{self.platform.name}-{method}-{seed}"
        self._stream: Any = self._rerun.RecordingStream("muninn-bench fly", recording_id=name)
        if self._live:
            self._stream.spawn()
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.written.append(self._folder / f"{name}.rrd")
            self._stream.save(self.written[-1])
        self._draw("world/obstacles", "LineStrips", self.world, _GREY, static=True)
        self._draw("world/goal", "Points", [self.goal], _RED, static=True)
        self._say(f"{method}, episode {seed}")
        self._show(self.seen[0].snapshot)

    def moment(self, snapshot: Snapshot) -> None:
        """Show the robot and the way it has come."""
        super().moment(snapshot)
        self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self._stream.set_time("simulated", duration=snapshot.time)
        self._draw("world/robot", "Points", [snapshot.position], _BLUE)
        come = np.array([one.snapshot.position for one in self.seen])
        self._draw("world/path", "LineStrips", [come], _BLUE)
        self._numbers(
            {"signals/clearance_m": snapshot.clearance, "signals/to_goal_m": snapshot.to_goal}
        )

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """Show the plan and the call's figures."""
        super().call(call, plan)
        self._stream.set_time("simulated", duration=call.finished)
        plans = [] if self._path is None else [self._path]
        self._draw("world/plan", "LineStrips", plans, _ORANGE)
        figures = {
            "evaluations": call.evaluations,
            "latency_ms": 1e3 * call.seconds,
            "dhat_m": self._bound(call),
            "mode": -1 if call.action == "hold" else _MODES[call.mode],
        }
        self._numbers({f"call/{name}": value for name, value in figures.items()})
        self._say(f"{call.action}: {call.reason or call.mode}")

    def end(self, flight: Flight) -> None:
        """Close the recording, and draw a GIF where nobody could look."""
        super().end(flight)
        self._say(flight.outcome)
        self._stream.flush()
        self._stream.disconnect()
        if not self._live and flight.method not in self._drawn:
            self._drawn.add(flight.method)
            self.written.append(self.written[-1].with_suffix(".gif"))
            title = f"{self.platform.name}, {flight.method}: {flight.outcome}"
            draw_gif(self.written[-1], self, self._certificate, title)

    def _say(self, words: str) -> None:
        self._stream.log("calls", self._rerun.TextLog(words))

    def _numbers(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self._stream.log(name, self._rerun.Scalars(float(value)))

    def _draw(
        self, name: str, shape: str, what: list[Any], colour: list[int], static: bool = False
    ) -> None:
        """Points or line strips, in as many dimensions as the world has."""
        kind = getattr(self._rerun, f"{shape}{len(self.goal)}D")
        size = {"radii": [self._rerun.Radius.ui_points(6.0)]} if shape == "Points" else {}
        self._stream.log(name, kind(what, colors=[colour] * len(what), **size), static=static)


def fly_live(
    console: Console,
    programs: ClosedLoopPrograms,
    names: Sequence[str],
    episodes: int,
    view: bool,
    replay: Path | None,
) -> None:
    """Plan at batch 1 here and now, with the latency that has; or as a recorded file says."""
    platform, folder = programs.platform, Path("runs/fly") / programs.platform.name
    asked = [Ticket(find_method(name), seed) for name in names for seed in range(episodes)]
    watcher = View(platform, programs.certificate, folder) if view else None
    jobs: list[tuple[Ticket, Latency]]
    if replay is not None:
        needed, recorded = read_flights(replay)
        jobs = [(Ticket(find_method(one.method), one.seed), Replayed(one.jobs)) for one in recorded]
    else:
        first = torch.cat([platform.begin(seed).context() for seed in range(_TIMED)])
        needed = methods.needs(platform, methods.measure_trace(programs, first, _TIMED))
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
