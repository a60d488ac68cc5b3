"""A live view of a flight in rerun: map, plan, path, evaluations, Dhat, mode and latency."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.platform import Episode, Platform, Snapshot
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall, Recorder
from muninn_bench.studies.closed_loop.pictures import draw_gif
from muninn_bench.studies.closed_loop.tables import bound_of

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
        self._lines("world/obstacles", self.world, _GREY, static=True)
        self._point("world/goal", self.goal, _RED, static=True)
        self._say(f"{method}, episode {seed}")
        self._show(self.seen[0].snapshot)

    def moment(self, snapshot: Snapshot) -> None:
        """Show the robot and the way it has come."""
        super().moment(snapshot)
        self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self._stream.set_time("simulated", duration=snapshot.time)
        self._point("world/robot", snapshot.position, _BLUE)
        self._lines("world/path", [np.array([one.snapshot.position for one in self.seen])], _BLUE)
        self._numbers(
            {"signals/clearance_m": snapshot.clearance, "signals/to_goal_m": snapshot.to_goal}
        )

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """Show the plan and the call's figures."""
        super().call(call, plan)
        self._stream.set_time("simulated", duration=call.finished)
        self._lines("world/plan", [] if self._path is None else [self._path], _ORANGE)
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

    def _point(self, name: str, at: FloatArray, colour: list[int], static: bool = False) -> None:
        kind = self._rerun.Points3D if len(at) == 3 else self._rerun.Points2D
        radius = self._rerun.Radius.ui_points(6.0)
        self._stream.log(name, kind([at], colors=[colour], radii=[radius]), static=static)

    def _lines(
        self, name: str, lines: list[FloatArray], colour: list[int], static: bool = False
    ) -> None:
        three = len(self.goal) == 3
        kind = self._rerun.LineStrips3D if three else self._rerun.LineStrips2D
        self._stream.log(name, kind(lines, colors=[colour] * len(lines)), static=static)
