"""One self-contained page about a run: what was promised, what was not, and what happened."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from muninn.errors import InputError
from muninn.files import write_whole
from muninn_bench.registry import find_task
from muninn_bench.report.style import COLOURS, INK, TITLES, outside_legend, save, subplots, svg
from muninn_bench.report.tables import BROKEN, answers, cells, headings, title
from muninn_bench.task import Drawable

Arrays = dict[str, Any]


def write_report(run: Path) -> Path:
    """Draw ``run/result.json`` and ``run/calls.safetensors`` as ``run/report.html``.

    Where the task can draw its plans on a map, that picture is ``run/plans.png``, too.

    Raises:
        InputError: the folder holds no comparison.
    """
    for name in ("result.json", "calls.safetensors"):
        if not (run / name).is_file():
            raise InputError(f"{run / name} was not found; make it with `muninn-bench compare`")
    result = json.loads((run / "result.json").read_text())
    arrays = safetensors.numpy.load_file(run / "calls.safetensors")
    task = find_task(result["task"])
    if isinstance(task, Drawable):
        save(overlays(arrays, task, result), run / "plans.png")
    return write_whole(run / "report.html", render(result, arrays))


def render(result: dict[str, Any], arrays: Arrays) -> str:
    """The page as HTML text, pictures inside."""
    kept, sure = result["violation_p_value"] >= BROKEN, result["confidence"]
    asked = "".join(f"<dt>{k}</dt><dd>{html.escape(v)}</dd>" for k, v in answers(result).items())
    places = {k: html.escape(v) if isinstance(v, str) else v for k, v in result.items()}
    places |= {method["name"]: method for method in result["methods"]}
    places |= {
        "sampler": result["sampler"].upper(),
        "answers": f'<dl class="verdict{"" if kept else " bad"}">{asked}</dl>',
        "table": _table(result),
        **_plans(result, arrays),
        "evaluated": evaluated_steps(arrays),
        "histogram": deviation_histogram(arrays, result["tolerance"]),
        "reliability": bound_reliability(arrays, result["risk"]),
        "times": latency(arrays),
        "kept": 1 - result["risk"],
        "units": "calls" if result["unit"] == "call" else "episodes",
        "certainty": "on average over calibrations"
        if sure is None
        else f"with confidence {sure:.0%} over the calibration draw",
    }
    template = Path(__file__).with_name("page.html").read_text()
    known = re.sub(
        r"<!-- if (\w+) -->(.*?)<!-- end -->\n",
        lambda part: "" if places[part[1]] is None else part[2] + "\n",
        template,
        flags=re.DOTALL,
    )
    return known.format(**places)


def _plans(result: dict[str, Any], arrays: Arrays) -> dict[str, str | None]:
    """Plans on the map, where the task can draw one, and the closest alternative in words."""
    task, closest = find_task(result["task"]), _closest(result)
    if not isinstance(task, Drawable):
        return {"plans": None}
    words = "" if closest is None else f"; {title(closest)} is the closest alternative"
    return {"plans": svg(overlays(arrays, task, result)), "rival": words}


def _closest(result: dict[str, Any]) -> dict[str, Any] | None:
    tuned = [method for method in result["methods"] if method["tuned"] is not None]
    return min(tuned, key=lambda method: method["deviation_p95"], default=None)


def _table(result: dict[str, Any]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings(result))
    rows = []
    for method in result["methods"]:
        own = ' class="own"' if method["name"] == "muninn" else ""
        row = "".join(f"<td>{cell}</td>" for cell in cells(method, intervals=True))
        rows.append(f"<tr{own}>{row}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


# -- pictures, each from the raw arrays as inline SVG -----------------------------------------


def overlays(arrays: Arrays, task: Drawable, result: dict[str, Any]) -> Any:
    """Plans of full compute, fewer steps, the closest alternative and Muninn on the map: three
    typical calls, how far they are from full compute's at every frame, and Muninn's worst three."""
    closest, known = _closest(result), {method["name"] for method in result["methods"]}
    chosen = known & {"full", "fewsteps", closest["name"] if closest else "full"}
    names = [*(name for name in COLOURS if name in chosen), "muninn"]
    deviation = arrays["muninn.deviation"]
    order = np.argsort(deviation)
    typical = order[(np.linspace(0.1, 0.9, 3) * (len(order) - 1)).astype(int)]
    worst = order[np.arange(len(order) - 3, len(order)).clip(0)]
    figure, axes = subplots(3, 3, 9.6, 7.0, height_ratios=(3, 2, 3), sharey="row")
    for calls, row in ((typical, axes[0]), (worst, axes[2])):
        for call, axis in zip(calls, row, strict=True):
            task.draw(axis, result["variant"], torch.from_numpy(arrays["contexts"][call][None]))
            for name, width in zip(names, np.linspace(3.4, 1.2, len(names)), strict=True):
                axis.plot(
                    *arrays[f"{name}.positions"][call].T, color=COLOURS[name], linewidth=width
                )
            axis.set_title(f"call {call}: Muninn off by {deviation[call]:.2g}", fontsize=9)
    for call, axis in zip(typical, axes[1], strict=True):
        for name in names:
            apart = arrays[f"{name}.positions"][call] - arrays["full.positions"][call]
            far = np.linalg.norm(apart, axis=-1)
            axis.plot(far, color=COLOURS[name], linewidth=1.6, label=TITLES[name])
        if result["tolerance_unit"].split(",")[0] == "m":
            axis.axhline(result["tolerance"], color=INK, linestyle="--", linewidth=1,
                         label="tolerance")  # fmt: skip
        axis.set_xlabel("frame")
    axes[1, 0].set_ylim(bottom=0.0)
    for axis, words in zip(axes[:, 0], ("m", "m from Full's plan", "m"), strict=True):
        axis.set_ylabel(words)
    for axis in axes.flat:
        axis.locator_params(nbins=5)
        axis.tick_params(labelsize=8)
    outside_legend(figure)
    return figure


def evaluated_steps(arrays: Arrays) -> str:
    """Share of calls that evaluated the network at each sampler step."""
    share = arrays["muninn.evaluated"].mean(axis=0)
    figure, axis = subplots(1, 1, 9.6, 1.9)
    axis.bar(np.arange(len(share)), share, width=0.8, color=COLOURS["muninn"])
    axis.set(xlabel="sampler step", ylabel="share of calls", ylim=(0, 1.05), xlim=(-1, len(share)))
    return svg(figure)


def deviation_histogram(arrays: Arrays, tolerance: float) -> str:
    """Deviations of the approximations on a log axis, with the tolerance."""
    names = [name for name in COLOURS if name != "full" and f"{name}.deviation" in arrays]
    values = {name: np.maximum(arrays[f"{name}.deviation"], 1e-6) for name in names}
    low = min(value.min() for value in values.values())
    high = max(value.max() for value in values.values())
    bins = np.geomspace(0.9 * low, max(1.1 * high, 10.0 * low), 45)
    figure, axis = subplots(1, 1, 9.6, 3.0)
    for name in names:
        axis.hist(values[name], bins, histtype="stepfilled", alpha=0.25, color=COLOURS[name])
        axis.hist(values[name], bins, histtype="step", color=COLOURS[name], label=TITLES[name])
    axis.axvline(tolerance, color=INK, linestyle="--", label=f"tolerance {tolerance:g}")
    axis.set(xscale="log", xlabel="deviation from full compute", ylabel="calls")
    axis.legend(frameon=False)
    return svg(figure)


def bound_reliability(arrays: Arrays, risk: float) -> str:
    """The per-call bound against the truth, and its coverage by size of the error estimate."""
    deviation, bound = arrays["muninn.deviation"], arrays["muninn.bound"]
    estimate = arrays["muninn.estimate"]
    figure, (left, right) = subplots(1, 2, 9.6, 3.4)
    left.scatter(bound, deviation, s=10, color=COLOURS["muninn"], alpha=0.6, linewidths=0)
    ends = [0.5 * min(deviation.min(), bound.min()) + 1e-6, 1.5 * max(deviation.max(), bound.max())]
    left.plot(ends, ends, color=INK, linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="per-call bound", ylabel="true deviation")
    left.xaxis.set_minor_formatter("")
    left.yaxis.set_minor_formatter("")
    groups = np.array_split(np.argsort(estimate), min(5, len(estimate)))
    covered = [(deviation[group] <= bound[group]).mean() for group in groups]
    right.bar(range(1, len(groups) + 1), covered, color=COLOURS["muninn"], width=0.65)
    right.axhline(1 - risk, color=INK, linestyle="--", linewidth=1)
    overall = (deviation <= bound).mean()
    right.set(
        xlabel="fifth of calls by error estimate (5 = largest)",
        ylabel="share within their bound",
        ylim=(min(0.6, *covered) - 0.1, 1.01),
        title=f"{overall:.1%} of the calls within their bound; on average {1 - risk:.0%}",
    )
    right.title.set_fontsize(9)
    return svg(figure)


def latency(arrays: Arrays) -> str:
    """Cumulative distribution of single-call times."""
    figure, axis = subplots(1, 1, 9.6, 2.8)
    for name, colour in COLOURS.items():
        if f"{name}.seconds" not in arrays:
            continue
        times = np.sort(1e3 * arrays[f"{name}.seconds"])
        share = np.arange(1, len(times) + 1) / len(times)
        axis.step(times, share, where="post", color=colour, label=TITLES[name], linewidth=1.8)
    axis.set(xscale="log", xlabel="time of one call, ms", ylabel="share of calls", ylim=(0, 1.02))
    axis.legend(frameon=False, loc="center")
    return svg(figure)
