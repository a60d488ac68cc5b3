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

_STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:960px;margin:2.5rem auto;padding:0 1.2rem;
color:#1c2733;background:#fff}h1{font-size:1.7rem;margin-bottom:.2rem}h2{font-size:1.2rem;
margin-top:2.2rem;border-bottom:1px solid #dde3ea;padding-bottom:.25rem}table{border-collapse:
collapse;width:100%;font-size:.92rem}th,td{padding:.4rem .55rem;text-align:right;border-bottom:
1px solid #e6ebf0}th:first-child,td:first-child{text-align:left}tr.own{background:#eef4fb;
font-weight:600}figure{margin:1rem 0}svg{width:100%;height:auto}figcaption,.small{font-size:.88rem;
color:#52616f}.verdict{padding:.7rem 1rem;border-left:4px solid #2a7f4f;background:#eff8f2}
.verdict.bad{border-color:#b3392f;background:#fbefee}code{background:#f2f5f8;padding:.1rem .3rem}
"""


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
    tolerance = result["tolerance"]
    sections = [
        f"<h1>Muninn on {html.escape(result['planner'])}</h1>",
        f'<p class="small">{result["sampler"].upper()}, {result["steps"]} steps, '
        f"{result['device']}, {result['dtype']}, {result['threads']} threads. Command: "
        f"<code>{html.escape(result['command'])}</code></p>",
        _verdict(result),
        "<h2>Side by side</h2>",
        _table(result),
        '<p class="small">Violations and success with 95% Wilson intervals. FewSteps is the same '
        "sampler with fewer steps (a DDIM step with its prediction reused composes exactly, so it "
        "is reuse of the noise estimate as well); DPM-Solver++ and UniPC are diffusers' multistep "
        "solvers; the Taylor series continues the network's output between evaluations. All get "
        "Muninn's mean number of evaluations, rounded up, and the spacing and order that do best "
        "on tuning calls of their own, by the score of Muninn's own tuner. Times are single calls, "
        f"methods taking turns, {result['timed_calls']} each.</p>",
        *_plans(result, arrays),
        "<h2>Which steps were evaluated</h2>",
        _figure(
            figures.evaluated_steps(arrays),
            "Sampler steps from noise (left) to plan (right); a bar is the share of calls in which "
            "the network was evaluated there. All other steps are forecast.",
        ),
        "<h2>Deviation from full compute</h2>",
        _figure(
            figures.deviation_histogram(arrays, tolerance),
            f"{html.escape(result['metric'])} deviation of every held-out call, log scale. The "
            "dashed line is the tolerance.",
        ),
        "<h2>Per-call bound</h2>",
        _figure(
            figures.bound_reliability(arrays, result["risk"]),
            "Left: the bound Dhat of each call against its true deviation; points below the "
            "diagonal are covered. Right: coverage among calls grouped by their error estimate. "
            "The bound holds on average over calls, not for each group.",
        ),
        "<h2>Time of a call</h2>",
        _figure(
            figures.latency(arrays),
            "Share of single calls that finished within a time, batch 1.",
        ),
        "<h2>What was promised, what was not, what happened</h2>",
        _words(result),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Muninn: {html.escape(result['planner'])}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(sections)}</body></html>\n"
    )


def _methods(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {method["name"]: method for method in result["methods"]}


def _verdict(result: dict[str, Any]) -> str:
    muninn = _methods(result)["muninn"]
    kept = result["violation_p_value"] >= 0.01
    words = "The promise was kept." if kept else "The promise was NOT kept: please report this."
    return (
        f'<p class="verdict{"" if kept else " bad"}"><b>{words}</b> '
        f"{result['speedup']:.1f} times faster than full compute at batch 1, with "
        f"{muninn['evaluations_mean']:.1f} of {result['steps']} network evaluations. "
        f"{muninn['violation_rate']:.1%} of {result['test_calls']} held-out calls deviated by more "
        f"than {result['tolerance']:g} {html.escape(result['tolerance_unit'])}; at most "
        f"{result['risk']:.0%} were promised.</p>"
    )


def _plans(result: dict[str, Any], arrays: dict[str, Any]) -> list[str]:
    """Plans on the map, where the task can draw one."""
    task = find_task(result["task"])
    if not isinstance(task, Drawable):
        return []
    tuned = [method for method in result["methods"] if method["tuned"] is not None]
    best = min(tuned, key=lambda method: method["deviation_p95"], default=None)
    rival = None if best is None else best["name"]
    return [
        "<h2>Plans</h2>",
        _figure(
            figures.overlays(arrays, task, result["variant"], rival),
            "Full compute (grey) against Muninn (blue)"
            + ("" if best is None else f" and the closest alternative, {title(best)}")
            + ". The first calls are typical; the last row shows the largest deviations of this "
            "run, chosen because they are the worst.",
        ),
    ]


def _table(result: dict[str, Any]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings(result))
    rows = []
    for method in result["methods"]:
        own = ' class="own"' if method["name"] == "muninn" else ""
        row = "".join(f"<td>{cell}</td>" for cell in cells(method, intervals=True))
        rows.append(f"<tr{own}>{row}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _words(result: dict[str, Any]) -> str:
    muninn = _methods(result)["muninn"]
    confidence = result["confidence"]
    certainty = (
        "on average over calibrations"
        if confidence is None
        else f"with confidence {confidence:.0%} over the calibration draw"
    )
    unit = "calls" if result["unit"] == "call" else "episodes"
    paragraphs = [
        f"<b>Promised.</b> At most {result['risk']:.0%} of new {unit} deviate from the "
        f"full-compute plan by more than {result['tolerance']:g} "
        f"({html.escape(result['metric'])}), {certainty}. It was calibrated on "
        f"{result['calibration']['certify']} {unit} that had no part in tuning, in "
        f"{result['loop']} loop.",
        f"<b>Not promised.</b> Up to {result['risk']:.0%} of {unit} may differ arbitrarily, "
        "another route included. The promise bounds the distance to the full plan, not the safety "
        "of either plan. It holds for contexts like those calibrated: another world, other starts "
        "or goals, or another model need a new calibration.",
        f"<b>What happened.</b> On {result['test_calls']} held-out calls, "
        f"{muninn['violation_rate']:.1%} exceeded the tolerance (exact one-sided test "
        f"that the rate is above {result['risk']:.0%}: p = {result['violation_p_value']:.2g}; a "
        "p-value below 0.01 would be reported as a broken promise).",
    ]
    if result["success_p_value"] is not None:
        full = _methods(result)["full"]
        paragraphs.append(
            f"<b>Task.</b> Driving the plans in the environment succeeded in "
            f"{full['task_success']:.1%} (full compute) and {muninn['task_success']:.1%} (Muninn) "
            f"of the calls; exact paired McNemar test that Muninn is worse: "
            f"p = {result['success_p_value']:.2g}."
        )
    if result["bound_coverage"] is not None:
        paragraphs.append(
            f"<b>Per-call bound.</b> Dhat covered {result['bound_coverage']:.1%} of the calls; "
            f"{1 - result['risk']:.0%} was intended, on average over calls and calibrations."
        )
    single = result["single_calls"]
    paragraphs.append(
        f"<b>Batch 1.</b> Calibration and the figures above ran calls in batches. Among the "
        f"{result['timed_calls']} timed single calls {single['violations']} exceeded the "
        f"tolerance (largest deviation {single['deviation_max']:.2g}); full compute at batch 1 "
        f"differs from itself in a batch by at most {single['full_against_itself_max']:.1g}."
    )
    return "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
