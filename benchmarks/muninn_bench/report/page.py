"""One self-contained page about a run: what was promised, what was not, and what happened."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy

from muninn.errors import InputError
from muninn.files import write_whole
from muninn_bench.registry import find_task
from muninn_bench.report import figures
from muninn_bench.report.tables import cells, headings, title
from muninn_bench.task import Drawable


def write_report(run: Path) -> Path:
    """Draw ``run/result.json`` and ``run/calls.safetensors`` as ``run/report.html``.

    Raises:
        InputError: the folder holds no comparison.
    """
    for name in ("result.json", "calls.safetensors"):
        if not (run / name).is_file():
            raise InputError(f"{run / name} was not found; make it with `muninn-bench compare`")
    result = json.loads((run / "result.json").read_text())
    arrays = safetensors.numpy.load_file(run / "calls.safetensors")
    return write_whole(run / "report.html", render(result, arrays))


def render(result: dict[str, Any], arrays: dict[str, Any]) -> str:
    """The page as HTML text, pictures inside."""
    kept, sure = result["violation_p_value"] >= 0.01, result["confidence"]
    words = "The promise was kept." if kept else "The promise was NOT kept: please report this."
    places = {k: html.escape(v) if isinstance(v, str) else v for k, v in result.items()}
    places |= {method["name"]: method for method in result["methods"]}
    places |= {
        "sampler": result["sampler"].upper(),
        "verdict": f'<p class="verdict{"" if kept else " bad"}"><b>{words}</b>',
        "table": _table(result),
        "plans": _plans(result, arrays),
        "evaluated": figures.evaluated_steps(arrays),
        "histogram": figures.deviation_histogram(arrays, result["tolerance"]),
        "reliability": figures.bound_reliability(arrays, result["risk"]),
        "times": figures.latency(arrays),
        "kept": 1 - result["risk"],
        "units": "calls" if result["unit"] == "call" else "episodes",
        "certainty": "on average over calibrations"
        if sure is None
        else f"with confidence {sure:.0%} over the calibration draw",
        "task_words": "",
        "bound_words": "",
    }
    if result["success_p_value"] is not None:
        places["task_words"] = _TASK.format(**places)
    if result["bound_coverage"] is not None:
        places["bound_words"] = _BOUND.format(**places)
    return Path(__file__).with_name("page.html").read_text().format(**places)


def _plans(result: dict[str, Any], arrays: dict[str, Any]) -> str:
    """Plans on the map, where the task can draw one."""
    task = find_task(result["task"])
    if not isinstance(task, Drawable):
        return ""
    tuned = [method for method in result["methods"] if method["tuned"] is not None]
    best = min(tuned, key=lambda method: method["deviation_p95"], default=None)
    rival = None if best is None else best["name"]
    drawn = figures.overlays(arrays, task, result["variant"], rival)
    other = "" if best is None else f" and the closest alternative, {title(best)}"
    return (
        f"<h2>Plans</h2><figure>{drawn}<figcaption>Full compute (grey) against Muninn (blue){other}"
        ". The first calls are typical; the last row shows the largest deviations of this run, "
        "chosen because they are the worst.</figcaption></figure>"
    )


def _table(result: dict[str, Any]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings(result))
    rows = []
    for method in result["methods"]:
        own = ' class="own"' if method["name"] == "muninn" else ""
        row = "".join(f"<td>{cell}</td>" for cell in cells(method, intervals=True))
        rows.append(f"<tr{own}>{row}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


_TASK = (
    "<p><b>Task.</b> Driving the plans in the environment succeeded in {full[task_success]:.1%} "
    "(full compute) and {muninn[task_success]:.1%} (Muninn) of the calls; exact paired McNemar "
    "test that Muninn is worse: p = {success_p_value:.2g}.</p>"
)
_BOUND = (
    "<p><b>Per-call bound.</b> Dhat covered {bound_coverage:.1%} of the calls; {kept:.0%} was "
    "intended, on average over calls and calibrations.</p>"
)
