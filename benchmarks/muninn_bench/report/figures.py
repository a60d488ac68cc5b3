"""Pictures of a run as inline SVG; each function draws one figure from the raw arrays."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from muninn_bench.report.tables import TITLES
from muninn_bench.tasks.maze2d.maze import EXTENT, WALLS

COLOURS = {
    "full": "#8a97a3",
    "muninn": "#1f66b0",
    "fewsteps": "#d1782a",
    "dpmsolver": "#3f8f5b",
    "unipc": "#8d5aa5",
    "taylor": "#b09a3e",
}
Arrays = dict[str, Any]


def _subplots(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "muninn",
        }
    )
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), constrained_layout=True)


def _svg(figure: Any) -> str:
    from matplotlib import pyplot

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def maze_overlays(arrays: Arrays) -> str:
    """Full against cached plans: typical calls first, the worst ones last."""
    deviation = arrays["muninn.deviation"]
    order = np.argsort(deviation)
    places = [*np.linspace(0.1, 0.9, 3) * (len(order) - 1), *range(len(order) - 3, len(order))]
    figure, axes = _subplots(2, 3, 9.6, 5.2)
    for axis, place in zip(axes.flat, places, strict=True):
        call = int(order[int(place)])
        axis.imshow(WALLS, extent=EXTENT, cmap="Greys", vmin=0, vmax=3, interpolation="nearest")
        for name, width in (("full", 3.2), ("muninn", 1.3)):
            x, y = arrays[f"{name}.positions"][call].T
            axis.plot(x, y, color=COLOURS[name], linewidth=width, label=TITLES[name])
        axis.plot(*arrays["start"][call, :2], "o", color="#1c2733", markersize=4)
        axis.plot(*arrays["goal"][call], "*", color="#c0392b", markersize=9)
        axis.set_title(f"call {call}: deviation {deviation[call]:.4f}", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    axes.flat[0].legend(loc="lower left", fontsize=8, framealpha=0.9)
    return _svg(figure)


def evaluated_steps(arrays: Arrays) -> str:
    """Share of calls that evaluated the network at each sampler step."""
    share = arrays["muninn.evaluated"].mean(axis=0)
    figure, axis = _subplots(1, 1, 9.6, 1.9)
    axis.bar(np.arange(len(share)), share, width=0.8, color=COLOURS["muninn"])
    axis.set(xlabel="sampler step", ylabel="share of calls", ylim=(0, 1.05), xlim=(-1, len(share)))
    return _svg(figure)


def deviation_histogram(arrays: Arrays, tolerance: float) -> str:
    """Deviations of the approximations on a log axis, with the tolerance."""
    names = [name for name in COLOURS if name != "full" and f"{name}.deviation" in arrays]
    values = {name: np.maximum(arrays[f"{name}.deviation"], 1e-6) for name in names}
    low = min(value.min() for value in values.values())
    high = max(value.max() for value in values.values())
    bins = np.geomspace(max(low, 1e-4) * 0.9, high * 1.1, 45)
    figure, axis = _subplots(1, 1, 9.6, 3.0)
    for name in names:
        axis.hist(values[name], bins, histtype="stepfilled", alpha=0.25, color=COLOURS[name])
        axis.hist(values[name], bins, histtype="step", color=COLOURS[name], label=TITLES[name])
    axis.axvline(tolerance, color="#1c2733", linestyle="--", label=f"tolerance {tolerance:g}")
    axis.set(xscale="log", xlabel="deviation from full compute", ylabel="calls")
    axis.legend(frameon=False)
    return _svg(figure)


def bound_reliability(arrays: Arrays, risk: float) -> str:
    """The per-call bound against the truth, and its coverage by size of the error estimate."""
    deviation, bound = arrays["muninn.deviation"], arrays["muninn.bound"]
    estimate = arrays["muninn.estimate"]
    figure, (left, right) = _subplots(1, 2, 9.6, 3.4)
    left.scatter(bound, deviation, s=10, color=COLOURS["muninn"], alpha=0.6, linewidths=0)
    ends = [0.5 * min(deviation.min(), bound.min()) + 1e-6, 1.5 * max(deviation.max(), bound.max())]
    left.plot(ends, ends, color="#1c2733", linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="bound Dhat", ylabel="true deviation")
    left.xaxis.set_minor_formatter("")
    left.yaxis.set_minor_formatter("")
    groups = np.array_split(np.argsort(estimate), 5)
    covered = [(deviation[group] <= bound[group]).mean() for group in groups]
    right.bar(range(1, 6), covered, color=COLOURS["muninn"], width=0.65)
    right.axhline(1 - risk, color="#1c2733", linestyle="--", linewidth=1)
    overall = (deviation <= bound).mean()
    right.set(
        xlabel="fifth of calls by error estimate (5 = largest)",
        ylabel="share covered",
        ylim=(min(0.6, *covered) - 0.1, 1.01),
        title=f"{overall:.1%} covered in all, {1 - risk:.0%} intended",
    )
    right.title.set_fontsize(9)
    return _svg(figure)


def latency(arrays: Arrays) -> str:
    """Cumulative distribution of single-call times."""
    figure, axis = _subplots(1, 1, 9.6, 2.8)
    for name, colour in COLOURS.items():
        if f"{name}.seconds" not in arrays:
            continue
        times = np.sort(1e3 * arrays[f"{name}.seconds"])
        share = np.arange(1, len(times) + 1) / len(times)
        axis.step(times, share, where="post", color=colour, label=TITLES[name], linewidth=1.8)
    axis.set(xscale="log", xlabel="time of one call, ms", ylabel="share of calls", ylim=(0, 1.02))
    axis.legend(frameon=False, loc="center")
    return _svg(figure)
