"""Pictures: of a study, of its calls, and of one flight that a recorder watched."""

from __future__ import annotations

import bisect
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import Certificate
from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import spearman
from muninn_bench.report.style import COLOURS, save, subplots
from muninn_bench.studies.closed_loop.loop import Flight, Recorder
from muninn_bench.studies.closed_loop.methods import METHODS
from muninn_bench.studies.closed_loop.tables import Row, bound_of

FRAMES, FASTEST, LONGEST, PAUSE = 60, 20, 10.0, 3.0
"""Of a GIF: most frames, in all and a second; most seconds it plays; seconds that it then rests."""

WIDTH, BINS = 38, 8
"""Characters of a GIF's captions, and bins along the axis of a cloud of calls."""

OURS, PLANNED, GOAL, ROOM = COLOURS["muninn"], COLOURS["fewsteps"], "#c0392b", "#3f8f5b"

_ENDED = {"success": "at the goal", "collision": "collided", "timeout": "out of time"}


def draw_gif(
    path: Path, recorders: Sequence[Recorder], certificate: Certificate | None = None
) -> Path:
    """Write flights side by side, on one clock: map, plan and path, what planning cost, the end.

    With a certificate, the signals of the first flight over time stand beside it. Flights longer
    than ``LONGEST`` are shown faster than they were, and the picture says how much.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    end = max(recorder.seen[-1].snapshot.time for recorder in recorders)
    shown = min(end, LONGEST)
    times = np.linspace(0.0, end, max(2, min(FRAMES, math.ceil(shown * FASTEST)))).tolist()
    count = len(recorders) + (certificate is not None)
    figure = Figure(dpi=80)
    grid = figure.add_gridspec(1, count)
    panels = [_Panel(figure, grid[place], own, times) for place, own in enumerate(recorders)]
    height = 0.3 + max(panel.height for panel in panels)
    figure.set_size_inches(3.5 * count, height)
    # Room above the captions for the names of the methods, which a layout does not see.
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - 0.2 / height)))
    marks = []
    if certificate is not None:
        axes: Any = grid[len(panels)].subgridspec(3, 1).subplots()
        draw_signals(axes, recorders[0], certificate)
        marks = [axis.axvline(0.0, color="0.2", linewidth=1) for axis in axes]
    rows = max(panel.rows for panel in panels)
    for panel in panels:
        panel.rows = rows  # maps stand side by side, however long one caption is
        panel.show(0.0)
    speed = "" if shown == end else f" (shown {end / shown:.1f} times as fast)"
    heading = f"{recorders[0].platform.name}, {{:.1f}} s after the start{speed}"
    words = figure.text(0.01, 0.03, heading.format(0.0), fontsize=9)
    entries = panels[0].axis.get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower right", ncols=3, fontsize=9, frameon=False)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not at every frame
    canvas: Any = FigureCanvasAgg(figure)
    frames = []
    for now in times:
        words.set_text(heading.format(now))
        for panel in panels:
            panel.show(now)
        for mark in marks:
            mark.set_xdata([now, now])
        canvas.draw()
        # Pillow confuses colours that are closer to each other.
        frames.append(15 * np.rint(np.asarray(canvas.buffer_rgba())[..., :3] / 15).astype(np.uint8))
    return _save_frames(path, frames, shown / len(times))


def _save_frames(path: Path, frames: Sequence[np.ndarray[Any, Any]], seconds: float) -> Path:
    """Write frames (height, width, 3) as a GIF in one palette; the last of them rests."""
    from PIL import Image

    # The commonest colours as they are: a palette of means would turn the red goal orange.
    middle = frames[len(frames) // 2].reshape(-1, 3)
    colours, counts = np.unique(middle, axis=0, return_counts=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours[np.argsort(-counts)[:256]].ravel().tolist())
    pictures = [Image.fromarray(frame) for frame in frames]
    first, *rest = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
    lasting = [*[1e3 * seconds] * len(rest), 1e3 * PAUSE]
    path.parent.mkdir(parents=True, exist_ok=True)
    first.save(path, save_all=True, append_images=rest, duration=lasting, loop=0)
    return path


class _Panel:
    """One flight: the map, and above it the method, what a plan cost, and what happens now."""

    def __init__(self, figure: Any, place: Any, recorder: Recorder, times: Sequence[float]) -> None:
        assert recorder.flight is not None  # it is over
        self._seen, self._flight = recorder.seen, recorder.flight
        self._moments = [moment.snapshot.time for moment in recorder.seen]
        flat = len(recorder.goal) == 2
        self.axis = figure.add_subplot(place, projection=None if flat else "3d")
        self._lines = _draw_scene(self.axis, recorder)
        self.rows = max(len(self._words(now)) for now in times)
        self._caption = self.axis.set_title("", fontsize=9)
        look = {"weight": "bold", "size": 11, "ha": "center"}
        name = METHODS[recorder.flight.method].title
        self.axis.annotate(name, (0.5, 1.1), xycoords=self._caption, **look)
        left, right, bottom, top = self.axis.axis()[:4]
        shape = (top - bottom) / (right - left) if flat else 0.9
        self.height = 3.0 * shape + 0.17 * self.rows + 0.7  # inches

    def show(self, now: float) -> None:
        """Put everything where it was at a time; where it ended once the flight is over."""
        seen = self._seen[: self._latest(now) + 1]
        place, path = seen[-1].snapshot.position, seen[-1].path
        plan, way, robot = self._lines
        _put(way, np.array([moment.snapshot.position for moment in seen]))
        _put(robot, place[None])
        _put(plan, np.zeros((0, len(place))) if path is None else path)
        words = self._words(now)
        words += [""] * (self.rows - len(words))  # as many lines in every frame
        self._caption.set_text("\n".join(words))

    def _latest(self, now: float) -> int:
        return max(0, bisect.bisect_right(self._moments, now) - 1)

    def _words(self, now: float) -> list[str]:
        """What a plan of this flight costs, and what happens at a time; wrapped to the panel."""
        flight, call = self._flight, self._seen[self._latest(now)].call
        planned = [call for call in flight.calls if call.evaluations]
        cost = "no plan was ready in time"
        if planned:
            milliseconds = 1e3 * np.median([call.seconds for call in planned])
            evaluations = np.mean([call.evaluations for call in planned])
            cost = f"{evaluations:.3g} evaluations, {milliseconds:.0f} ms a plan"
        if now >= self._moments[-1]:
            what = f"{_ENDED[flight.outcome]} after {flight.seconds:.1f} s"
        elif call is None:
            what = "waits for its first plan"
        elif call.action == "hold":
            what = f"holds: {call.reason}"
        else:
            what = f"follows a plan {now - call.began:.1f} s old"
            what += "" if call.factor == 1.0 else f", {call.factor:.0%} of its speed"
        return [cost, *textwrap.wrap(what, WIDTH)]


def _draw_scene(axis: Any, recorder: Recorder) -> list[Any]:
    """The map with the goal; returns empty lines for the plan, the way so far and the robot."""
    for line in recorder.world:
        axis.plot(*line.T, color="0.45", linewidth=1.0)
    axis.plot(*np.atleast_2d(recorder.goal).T, "*", color=GOAL, markersize=11, label="goal")
    empty: list[list[float]] = [[]] * len(recorder.goal)
    styles: tuple[dict[str, Any], ...] = (
        {"color": PLANNED, "linewidth": 1.2, "label": "plan"},
        {"color": OURS, "linewidth": 1.8, "label": "flown"},
        {"color": OURS, "marker": "o"},
    )
    lines = [axis.plot(*empty, **style)[0] for style in styles]
    every = np.array([moment.snapshot.position for moment in recorder.seen])
    world = [*recorder.world, every, recorder.goal[None]]
    ends = np.concatenate([line[:, : every.shape[1]] for line in world])
    margins = 0.03 * np.ptp(ends, axis=0) + 1e-6
    limits = np.stack([ends.min(axis=0) - margins, ends.max(axis=0) + margins], axis=1).tolist()
    axis.set(xlabel="m", ylabel="m", **dict(zip(("xlim", "ylim", "zlim"), limits, strict=False)))
    if len(limits) == 2:
        axis.set_aspect("equal")
    return lines


def _put(line: Any, points: FloatArray) -> None:
    (line.set_data_3d if points.shape[1] == 3 else line.set_data)(*points.T)


def draw_signals(axes: Sequence[Any], recorder: Recorder, certificate: Certificate) -> None:
    """Bound, clearance and evaluations of one flight over time, on three axes."""
    bound, calls = bound_of(certificate), recorder.calls
    times = [moment.snapshot.time for moment in recorder.seen]
    handed = [call.finished for call in calls]
    top, middle, bottom = axes
    top.step(handed, [bound(call) for call in calls], where="post", color=OURS)
    if certificate.tolerance is not None:
        top.axhline(certificate.tolerance, color="0.4", linestyle="--", linewidth=1)
    top.set(ylabel="bound, m")
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
    """Evaluations against clearance, and the bound against the clearance that followed."""
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
    right.set(xlabel="clearance one call later, m", ylabel="bound on the deviation, m")
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
    """Bound, clearance and evaluations of one flight over time."""
    figure, axes = subplots(3, 1, 8.4, 5.2)
    draw_signals(axes, recorder, certificate)
    if (flight := recorder.flight) is not None:
        said = f"{flight.method}, episode {flight.seed}: {flight.outcome}"
        axes[0].set_title(f"{said}. Orange: escalated; grey: hold; dashed: tolerance", fontsize=9)
    save(figure, path)
