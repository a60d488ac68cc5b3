"""A watched flight as pictures: a recorder that looks on, and a GIF of what it saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn_bench.platform import Episode, FloatArray, Platform, Snapshot
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall

FRAMES = 60
"""Of a GIF at most."""


@runtime_checkable
class Outlined(Protocol):
    """A platform, or an episode, that can be drawn: closed or open lines, (points, 2 or 3)."""

    def outlines(self) -> Sequence[FloatArray]:
        """Walls, shores, obstacles; world units."""
        ...


def outlines(platform: Platform, episode: Episode) -> list[FloatArray]:
    """Everything that can be drawn of a world; nothing where it does not say."""
    parts = [part for part in (platform, episode) if isinstance(part, Outlined)]
    return [line for part in parts for line in part.outlines()]


def bound_of(certificate: Certificate) -> Callable[[FlownCall], float]:
    """Dhat of the plan that a call executed: NaN for a hold, 0 for full compute's own plan."""

    def bound(call: FlownCall) -> float:
        if call.estimate is None:
            return float("nan")
        if call.source == "full":
            return 0.0
        return float(certificate.bound(np.array([call.estimate]))[0])

    return bound


@dataclass(frozen=True)
class Seen:
    """A moment: where the robot is, the latest call, and the plan it follows, None in a hold."""

    snapshot: Snapshot
    call: FlownCall | None
    path: FloatArray | None


@dataclass
class Recorder:
    """Keeps what happens in one episode; see :class:`muninn_bench.studies.closed_loop.loop.Watcher`."""

    platform: Platform
    seen: list[Seen] = field(default_factory=list)
    calls: list[FlownCall] = field(default_factory=list)
    world: list[FloatArray] = field(default_factory=list)
    goal: FloatArray = field(default_factory=lambda: np.zeros(2))
    flight: Flight | None = None
    _path: FloatArray | None = None

    def begin(self, episode: Episode, method: str, seed: int) -> None:
        """Forget the episode before."""
        self.seen, self.calls, self.flight, self._path = [], [], None, None
        self.world = outlines(self.platform, episode)
        self.goal = np.asarray(episode.goal)
        self.seen.append(Seen(episode.snapshot(), None, None))

    def moment(self, snapshot: Snapshot) -> None:
        """Keep it."""
        self.seen.append(Seen(snapshot, self.calls[-1] if self.calls else None, self._path))

    def call(self, call: FlownCall, plan: Tensor | None) -> None:
        """Keep it, and the plan."""
        self.calls.append(call)
        self._path = None if plan is None else self.platform.path(plan)

    def end(self, flight: Flight) -> None:
        """Keep it."""
        self.flight = flight


def draw_gif(path: Path, recorder: Recorder, certificate: Certificate, title: str) -> None:
    """Write the recorded flight: map, plan and path on the left, signals over time on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.animation import FuncAnimation, PillowWriter

    seen = recorder.seen[:: math.ceil(len(recorder.seen) / FRAMES)]
    dimensions = len(recorder.goal)
    figure = pyplot.figure(figsize=(8.4, 4.2), constrained_layout=True)
    grid = figure.add_gridspec(3, 2, width_ratios=(1.5, 1.0))
    left = figure.add_subplot(grid[:, 0], projection="3d" if dimensions == 3 else None)
    scene = _Scene(left, recorder)
    right = [figure.add_subplot(grid[row, 1]) for row in range(3)]
    signals = Signals(right, recorder, certificate)
    figure.suptitle(title, fontsize=10)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not at every frame

    def draw(number: int) -> list[Any]:
        moment = seen[number]
        scene.show(moment, [other.snapshot.position for other in seen[: number + 1]])
        signals.now(moment.snapshot.time)
        return []

    seconds = seen[-1].snapshot.time / max(len(seen), 1)
    animation = FuncAnimation(figure, draw, frames=len(seen), interval=1e3 * seconds, blit=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    animation.save(path, PillowWriter(fps=max(1, round(1.0 / max(seconds, 0.05)))), dpi=72)
    pyplot.close(figure)


class _Scene:
    """The map with the robot on it."""

    def __init__(self, axis: Any, recorder: Recorder) -> None:
        self._axis = axis
        for line in recorder.world:
            axis.plot(*line.T, color="0.45", linewidth=1.0)
        axis.plot(*np.atleast_2d(recorder.goal).T, "*", color="#c0392b", markersize=11)
        (self._plan,) = axis.plot([], [], *self._third(recorder), color="#d1782a", linewidth=1.2)
        (self._path,) = axis.plot([], [], *self._third(recorder), color="#1f66b0", linewidth=1.8)
        (self._robot,) = axis.plot([], [], *self._third(recorder), "o", color="#1f66b0")
        every = np.array([moment.snapshot.position for moment in recorder.seen])
        lines = [*recorder.world, every, recorder.goal[None]]
        ends = np.concatenate([line[:, : every.shape[1]] for line in lines])
        axis.set(xlim=_limits(ends[:, 0]), ylim=_limits(ends[:, 1]), xlabel="m", ylabel="m")
        axis.set_title(" ", fontsize=9)  # room for it when the figure is laid out
        if every.shape[1] == 2:
            axis.set_aspect("equal")
        else:
            axis.set(zlim=_limits(ends[:, 2]))

    def _third(self, recorder: Recorder) -> list[list[float]]:
        return [[]] if len(recorder.goal) == 3 else []

    def show(self, moment: Seen, positions: Sequence[FloatArray]) -> None:
        """A moment, and the way the robot has come."""
        _put(self._path, np.array(positions))
        _put(self._robot, moment.snapshot.position[None])
        empty = np.zeros((0, len(moment.snapshot.position)))
        _put(self._plan, empty if moment.path is None else moment.path)
        call = moment.call
        said = "waiting for the first plan" if call is None else _words(call)
        self._axis.set_title(f"{moment.snapshot.time:.2f} s, {said}", fontsize=9)


def _words(call: FlownCall) -> str:
    if call.action == "hold":
        return f"hold: {str(call.reason)[:40]}"
    what = f"{call.mode}, {call.evaluations} evaluations, {1e3 * call.seconds:.0f} ms"
    return what if call.factor == 1.0 else f"{what}, x {call.factor:g}"


def _put(line: Any, points: FloatArray) -> None:
    if points.shape[1] == 3:
        line.set_data_3d(*points.T)
    else:
        line.set_data(*points.T)


def _limits(values: FloatArray) -> tuple[float, float]:
    margin = 0.03 * float(np.ptp(values)) + 1e-6
    return float(values.min()) - margin, float(values.max()) + margin


class Signals:
    """Dhat, clearance and evaluations of one flight over time, on three axes."""

    def __init__(self, axes: Sequence[Any], recorder: Recorder, certificate: Certificate) -> None:
        bound = bound_of(certificate)
        calls = recorder.calls
        handed = [call.handed for call in calls]
        times = [moment.snapshot.time for moment in recorder.seen]
        clearances = [moment.snapshot.clearance for moment in recorder.seen]
        top, middle, bottom = axes
        top.step(handed, [bound(call) for call in calls], where="post", color="#1f66b0")
        if certificate.tolerance is not None:
            top.axhline(certificate.tolerance, color="0.4", linestyle="--", linewidth=1)
        top.set(ylabel="Dhat, m")
        middle.plot(times, clearances, color="#3f8f5b")
        middle.axhline(0.0, color="#c0392b", linewidth=1)
        middle.set(ylabel="clearance, m")
        bottom.step(handed, [call.evaluations for call in calls], where="post", color="0.3")
        bottom.set(ylabel="evaluations", xlabel="s", ylim=(0, None))
        for axis in axes:
            for call in calls:
                if call.action == "hold":
                    axis.axvspan(call.handed, call.handed + recorder.platform.period, color="0.9")
                elif call.mode != "nominal":
                    axis.axvline(call.handed, color="#d1782a", linewidth=0.8, alpha=0.6)
            axis.set_xlim(0.0, times[-1])
            axis.tick_params(labelsize=8)
        self._marks = [axis.axvline(0.0, color="0.2", linewidth=1) for axis in axes]

    def now(self, time: float) -> None:
        """Move the marks to the present."""
        for mark in self._marks:
            mark.set_xdata([time, time])
