"""Pictures: of a study, of its calls, and of one flight that a recorder watched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import Certificate
from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import spearman
from muninn_bench.report.style import COLOURS, save, subplots
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall, Recorder
from muninn_bench.studies.closed_loop.methods import METHODS
from muninn_bench.studies.closed_loop.tables import Row, bound_of

FRAMES, BINS = 60, 8
"""Of a GIF at most, and along the axis of a cloud of calls."""

OURS, PLANNED, GOAL, ROOM = COLOURS["muninn"], COLOURS["fewsteps"], "#c0392b", "#3f8f5b"


def draw_gif(path: Path, recorder: Recorder, certificate: Certificate, title: str) -> None:
    """Write the recorded flight: map, plan and path on the left, signals over time on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.animation import FuncAnimation, PillowWriter

    seen = recorder.seen[:: math.ceil(len(recorder.seen) / FRAMES)]
    figure = pyplot.figure(figsize=(8.4, 4.2), constrained_layout=True)
    grid = figure.add_gridspec(3, 2, width_ratios=(1.5, 1.0))
    left = figure.add_subplot(grid[:, 0], projection="3d" if len(recorder.goal) == 3 else None)
    plan, way, robot = _draw_scene(left, recorder)
    right = [figure.add_subplot(grid[row, 1]) for row in range(3)]
    draw_signals(right, recorder, certificate)
    marks = [axis.axvline(0.0, color="0.2", linewidth=1) for axis in right]
    figure.suptitle(title, fontsize=10)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not at every frame

    def draw(number: int) -> list[Any]:
        moment = seen[number]
        now, place = moment.snapshot.time, moment.snapshot.position
        _put(way, np.array([other.snapshot.position for other in seen[: number + 1]]))
        _put(robot, place[None])
        _put(plan, np.zeros((0, len(place))) if moment.path is None else moment.path)
        left.set_title(f"{now:.2f} s, {_words(moment.call)}", fontsize=9)
        for mark in marks:
            mark.set_xdata([now, now])
        return []

    seconds = seen[-1].snapshot.time / max(len(seen), 1)
    animation = FuncAnimation(figure, draw, frames=len(seen), interval=1e3 * seconds, blit=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    animation.save(path, PillowWriter(fps=max(1, round(1.0 / max(seconds, 0.05)))), dpi=72)
    pyplot.close(figure)


def _draw_scene(axis: Any, recorder: Recorder) -> list[Any]:
    """The map with the goal; returns empty lines for the plan, the way so far and the robot."""
    for line in recorder.world:
        axis.plot(*line.T, color="0.45", linewidth=1.0)
    axis.plot(*np.atleast_2d(recorder.goal).T, "*", color=GOAL, markersize=11)
    empty: list[list[float]] = [[]] * len(recorder.goal)
    styles = ({"color": PLANNED, "linewidth": 1.2}, {"color": OURS, "linewidth": 1.8})
    lines = [axis.plot(*empty, **style)[0] for style in (*styles, {"color": OURS, "marker": "o"})]
    every = np.array([moment.snapshot.position for moment in recorder.seen])
    world = [*recorder.world, every, recorder.goal[None]]
    ends = np.concatenate([line[:, : every.shape[1]] for line in world])
    margins = 0.03 * np.ptp(ends, axis=0) + 1e-6
    limits = np.stack([ends.min(axis=0) - margins, ends.max(axis=0) + margins], axis=1).tolist()
    axis.set(xlabel="m", ylabel="m", **dict(zip(("xlim", "ylim", "zlim"), limits, strict=False)))
    axis.set_title(" ", fontsize=9)  # room for it when the figure is laid out
    if len(limits) == 2:
        axis.set_aspect("equal")
    return lines


def _words(call: FlownCall | None) -> str:
    if call is None:
        return "waiting for the first plan"
    if call.action == "hold":
        return f"hold: {str(call.reason)[:40]}"
    what = f"{call.mode}, {call.evaluations} evaluations, {1e3 * call.seconds:.0f} ms"
    return what if call.factor == 1.0 else f"{what}, x {call.factor:g}"


def _put(line: Any, points: FloatArray) -> None:
    (line.set_data_3d if points.shape[1] == 3 else line.set_data)(*points.T)


def draw_signals(axes: Sequence[Any], recorder: Recorder, certificate: Certificate) -> None:
    """Dhat, clearance and evaluations of one flight over time, on three axes."""
    bound, calls = bound_of(certificate), recorder.calls
    times = [moment.snapshot.time for moment in recorder.seen]
    handed = [call.finished for call in calls]
    top, middle, bottom = axes
    top.step(handed, [bound(call) for call in calls], where="post", color=OURS)
    if certificate.tolerance is not None:
        top.axhline(certificate.tolerance, color="0.4", linestyle="--", linewidth=1)
    top.set(ylabel="Dhat, m")
    middle.plot(times, [moment.snapshot.clearance for moment in recorder.seen], color=ROOM)
    middle.axhline(0.0, color=GOAL, linewidth=1)
    middle.set(ylabel="clearance, m")
    bottom.step(handed, [call.evaluations for call in calls], where="post", color="0.3")
    bottom.set(ylabel="evaluations", xlabel="s", ylim=(0, None))
    for axis in axes:
        for call in calls:
            if call.action == "hold":
                axis.axvspan(call.finished, call.finished + recorder.platform.period, color="0.9")
            elif call.mode != "nominal":
                axis.axvline(call.finished, color=PLANNED, linewidth=0.8, alpha=0.6)
        axis.set_xlim(0.0, times[-1])
        axis.tick_params(labelsize=8)


def plot_outcomes(path: Path, rows: Sequence[Row]) -> None:
    """Success, collisions and time to the goal of every method, with 95% intervals."""
    figure, axes = subplots(1, 3, 10.5, 0.9 + 0.36 * len(rows), sharey=True)
    kinds = (
        ("success", "success", "success, %", 100.0),
        ("collision", "collision", "collisions, %", 100.0),
        ("time_to_goal_s", "time_to_goal", "time to the goal, s", 1.0),
    )
    places = -np.arange(len(rows))
    for axis, (name, ends, label, scale) in zip(axes, kinds, strict=True):
        for place, row in zip(places, rows, strict=True):
            colour = OURS if METHODS[row["method"]].program == "cached" else "0.45"
            interval = [scale * row[f"{ends}_{end}"] for end in ("low", "high")]
            axis.plot(interval, [place] * 2, color=colour, alpha=0.5)
            axis.plot([scale * row[name]], [place], "o", color=colour, markersize=5)
        axis.set(xlabel=label, ylim=(places[-1] - 0.6, 0.6))
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(places, [METHODS[row["method"]].title for row in rows])
    save(figure, path)


def plot_calls(path: Path, flights: Sequence[Flight], certificate: Certificate) -> None:
    """Evaluations against clearance, and Dhat against the clearance that followed."""
    figure, (left, right) = subplots(1, 2, 9.6, 3.6)
    calls = [call for flight in flights for call in flight.calls if call.evaluations]
    _cloud(left, [(call.clearance, call.evaluations) for call in calls])
    left.set(xlabel="clearance when planned, m", ylabel="evaluations of the call", ylim=(0, None))
    bound = bound_of(certificate)
    followed: list[tuple[float, float]] = []
    for flight in flights:
        after = [call.clearance for call in flight.calls[1:]]
        after.append(flight.smallest_clearance if flight.outcome == "collision" else np.nan)
        followed += zip(after, map(bound, flight.calls), strict=True)
    _cloud(right, followed)
    right.set(xlabel="clearance one call later, m", ylabel="Dhat of the executed plan, m")
    if certificate.tolerance is not None:
        right.axhline(certificate.tolerance, color="0.4", linestyle="--", linewidth=1)
    save(figure, path)


def _cloud(axis: Any, points: Sequence[tuple[float, float]]) -> None:
    """Every call of which both are known, and the mean of equally full bins along x."""
    pairs = np.array(points, dtype=np.float64).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if not len(pairs):
        return
    axis.scatter(pairs[:, 0], pairs[:, 1], s=7, alpha=0.25, linewidths=0, color=OURS)
    order = np.array_split(pairs[np.argsort(pairs[:, 0])], min(BINS, len(pairs)))
    means = np.array([part.mean(axis=0) for part in order])
    axis.plot(means[:, 0], means[:, 1], "o-", color=PLANNED, markersize=4, label="mean")
    rank = np.nan_to_num(spearman(*pairs.T)[0])  # 0 where one does not vary
    axis.set_title(f"Spearman {rank:+.2f}, {len(pairs)} calls", fontsize=9)
    axis.legend(frameon=False, fontsize=8)


def plot_timeline(path: Path, recorder: Recorder, certificate: Certificate) -> None:
    """Dhat, clearance and evaluations of one flight over time."""
    figure, axes = subplots(3, 1, 8.4, 5.2)
    draw_signals(axes, recorder, certificate)
    if (flight := recorder.flight) is not None:
        said = f"{flight.method}, episode {flight.seed}: {flight.outcome}"
        axes[0].set_title(f"{said}. Orange: escalated; grey: hold; dashed: tolerance", fontsize=9)
    save(figure, path)
