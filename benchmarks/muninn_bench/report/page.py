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
    }
    task = "" if result["success_p_value"] is None else _TASK
    bound = "" if result["bound_coverage"] is None else _BOUND
    body = "".join((*_PAGE, task, bound, _SINGLE)).format(**places)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Muninn: {places['planner']}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


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


_PAGE = (
    '<h1>Muninn on {planner}</h1><p class="small">{sampler}, {steps} steps, {device}, {dtype}, '
    "{threads} threads. Command: <code>{command}</code></p>",
    "{verdict} {speedup:.1f} times faster than full compute at batch 1, with "
    "{muninn[evaluations_mean]:.1f} of {steps} network evaluations. {muninn[violation_rate]:.1%} "
    "of {test_calls} held-out calls deviated by more than {tolerance:g} {tolerance_unit}; at most "
    "{risk:.0%} were promised.</p>",
    '<h2>Side by side</h2>{table}<p class="small">Violations and success with 95% Wilson '
    "intervals. FewSteps is the same sampler with fewer steps (a DDIM step with its prediction "
    "reused composes exactly, so it is reuse of the noise estimate as well); DPM-Solver++ and "
    "UniPC are multistep solvers; the Taylor series continues the network's output "
    "between evaluations. All get Muninn's mean number of evaluations, rounded up, and the spacing "
    "and order that do best on tuning calls of their own, by the score of Muninn's own tuner. "
    "Times are single calls, methods taking turns, {timed_calls} each.</p>{plans}",
    "<h2>Which steps were evaluated</h2><figure>{evaluated}<figcaption>Sampler steps from noise "
    "(left) to plan (right); a bar is the share of calls in which the network was evaluated there. "
    "All other steps are forecast.</figcaption></figure>",
    "<h2>Deviation from full compute</h2><figure>{histogram}<figcaption>{metric} deviation of "
    "every held-out call, log scale. The dashed line is the tolerance.</figcaption></figure>",
    "<h2>Per-call bound</h2><figure>{reliability}<figcaption>Left: the bound Dhat of each call "
    "against its true deviation; points below the diagonal are covered. Right: coverage among "
    "calls grouped by their error estimate. The bound holds on average over calls, not for each "
    "group.</figcaption></figure>",
    "<h2>Time of a call</h2><figure>{times}<figcaption>Share of single calls that finished within "
    "a time, batch 1.</figcaption></figure>",
    "<h2>What was promised, what was not, what happened</h2><p><b>Promised.</b> At most {risk:.0%} "
    "of new {units} deviate from the full-compute plan by more than {tolerance:g} ({metric}), "
    "{certainty}. It was calibrated on {calibration[certify]} {units} that had no part in tuning, "
    "in {loop} loop.</p>",
    "<p><b>Not promised.</b> Up to {risk:.0%} of {units} may differ arbitrarily, another route "
    "included. The promise bounds the distance to the full plan, not the safety of either plan. It "
    "holds for contexts like those calibrated: another world, other starts or goals, or another "
    "model need a new calibration.</p>",
    "<p><b>What happened.</b> On {test_calls} held-out calls, {muninn[violation_rate]:.1%} "
    "exceeded the tolerance (exact one-sided test that the rate is above {risk:.0%}: p = "
    "{violation_p_value:.2g}; a p-value below 0.01 would be reported as a broken promise).</p>",
)
_TASK = (
    "<p><b>Task.</b> Driving the plans in the environment succeeded in {full[task_success]:.1%} "
    "(full compute) and {muninn[task_success]:.1%} (Muninn) of the calls; exact paired McNemar "
    "test that Muninn is worse: p = {success_p_value:.2g}.</p>"
)
_BOUND = (
    "<p><b>Per-call bound.</b> Dhat covered {bound_coverage:.1%} of the calls; {kept:.0%} was "
    "intended, on average over calls and calibrations.</p>"
)
_SINGLE = (
    "<p><b>Batch 1.</b> Calibration and the figures above ran calls in batches. Among the "
    "{timed_calls} timed single calls {single_calls[violations]} exceeded the tolerance (largest "
    "deviation {single_calls[deviation_max]:.2g}); full compute at batch 1 differs from itself in "
    "a batch by at most {single_calls[full_against_itself_max]:.1g}.</p>"
)
