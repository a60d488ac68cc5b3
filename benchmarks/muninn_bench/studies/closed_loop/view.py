"""A live view of a flight in rerun: map, plan, path, evaluations, Dhat, mode and latency."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn.errors import InputError
from muninn_bench.platform import Episode, FloatArray, Platform, Snapshot
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall, Watcher
from muninn_bench.studies.closed_loop.recording import Recorder, bound_of, draw_gif, outlines

_MODES = {"nominal": 0, "damp": 1, "resample": 2, "full": 3}


def has_screen() -> bool:
    """Whether a window can be opened here."""
    return os.name == "nt" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class View:
    """Streams flights to rerun's window; without a screen writes files instead.

    Those are an .rrd of every flight, and a GIF of the first flight of each method.

    Args:
        platform: whose flights.
        certificate: of its planner, for Dhat.
        folder: for files.

    Raises:
        InputError: rerun is not installed.
    """

    def __init__(self, platform: Platform, certificate: Certificate, folder: Path) -> None:
        try:
            import rerun
        except ImportError as error:
            raise InputError("--view needs rerun: pip install 'muninn-diffusion[viz]'") from error
        self._rerun: Any = rerun
        self._platform = platform
        self._certificate = certificate
        self._folder = folder
        self._live = has_screen()
        self.written: list[Path] = []
        self._parts: list[Watcher] = []
        self._recorder = Recorder(platform)
        self._drawn: set[str] = set()

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        """A recording of its own for every flight."""
        name = f"{self._platform.name}-{method}-{seed}"
        stream = self._rerun.RecordingStream("muninn-bench fly", recording_id=name)
        if self._live:
            stream.spawn()
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.written.append(self._folder / f"{name}.rrd")
            stream.save(self.written[-1])
        self._parts = [_Stream(self._rerun, stream, self._platform, self._certificate)]
        self._parts += [] if self._live else [self._recorder]
        for part in self._parts:
            part.begin(episode, method, seed)

    def moment(self, snapshot: Snapshot) -> None:
        """Pass it on."""
        for part in self._parts:
            part.moment(snapshot)

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """Pass it on."""
        for part in self._parts:
            part.call(call, plan)

    def end(self, flight: Flight) -> None:
        """Close the recording, and draw a GIF where nobody could look."""
        for part in self._parts:
            part.end(flight)
        if not self._live and flight.method not in self._drawn:
            self._drawn.add(flight.method)
            self.written.append(self.written[-1].with_suffix(".gif"))
            title = f"{self._platform.name}, {flight.method}: {flight.outcome}"
            draw_gif(self.written[-1], self._recorder, self._certificate, title)


class _Stream:
    """One rerun recording."""

    def __init__(
        self, rerun: Any, stream: Any, platform: Platform, certificate: Certificate
    ) -> None:
        self._rerun, self._stream = rerun, stream
        self._platform = platform
        self._bound = bound_of(certificate)
        self._way: list[FloatArray] = []

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        self._way = []
        self._lines("world/obstacles", outlines(self._platform, episode), [90, 90, 90], True)
        self._points("world/goal", np.asarray(episode.goal), [192, 57, 43], True)
        self._stream.log("calls", self._rerun.TextLog(f"{method}, episode {seed}"))
        self.moment(episode.snapshot())

    def moment(self, snapshot: Snapshot) -> None:
        self._at(snapshot.time)
        self._way.append(snapshot.position)
        self._points("world/robot", snapshot.position, [31, 102, 176])
        self._lines("world/path", [np.array(self._way)], [31, 102, 176])
        self._number("signals/clearance_m", snapshot.clearance)
        self._number("signals/to_goal_m", snapshot.to_goal)

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        self._at(call.handed)
        lines = [] if plan is None else [self._platform.path(plan)]
        self._lines("world/plan", lines, [209, 120, 42])
        self._number("call/evaluations", call.evaluations)
        self._number("call/latency_ms", 1e3 * call.seconds)
        self._number("call/dhat_m", self._bound(call))
        self._number("call/mode", -1 if call.action == "hold" else _MODES[call.mode])
        said = call.reason or call.mode
        self._stream.log("calls", self._rerun.TextLog(f"{call.action}: {said}"))

    def end(self, flight: Flight) -> None:
        self._stream.log("calls", self._rerun.TextLog(flight.outcome))
        self._stream.flush()
        self._stream.disconnect()

    def _at(self, seconds: float) -> None:
        self._stream.set_time("simulated", duration=seconds)

    def _number(self, name: str, value: float) -> None:
        self._stream.log(name, self._rerun.Scalars(float(value)))

    def _points(
        self, name: str, point: FloatArray, colour: list[int], static: bool = False
    ) -> None:
        kind = self._rerun.Points3D if len(point) == 3 else self._rerun.Points2D
        radius = self._rerun.Radius.ui_points(6.0)
        self._stream.log(name, kind([point], colors=[colour], radii=[radius]), static=static)

    def _lines(
        self, name: str, lines: list[FloatArray], colour: list[int], static: bool = False
    ) -> None:
        three = any(line.shape[1] == 3 for line in lines)
        kind = self._rerun.LineStrips3D if three else self._rerun.LineStrips2D
        self._stream.log(name, kind(lines, colors=[colour] * len(lines)), static=static)
