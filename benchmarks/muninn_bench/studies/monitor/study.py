"""The monitor's study: false alarms on stationary streams, delays under five shifts."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from muninn.certify.certificate import library_versions
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers
from muninn_bench.measure.verdicts import Criterion, verdicts
from muninn_bench.report.study_page import write_page
from muninn_bench.report.style import outside_legend, save, subplots
from muninn_bench.report.table import markdown, write_csv
from muninn_bench.studies.monitor import streams
from muninn_bench.studies.monitor.deployment import Deployment, Options, measure
from muninn_bench.studies.monitor.streams import AFTER, NEVER, Row

_COLOURS = ("tab:brown", "tab:pink", "tab:cyan")  # none of the streams'


def run_monitor(
    out: Path,
    options: Options,
    command: str = "muninn-bench monitor",
    progress: bool = True,
    workers: Workers = 1,
) -> list[Criterion]:
    """Measure, simulate, and write tables, a picture and a README to ``out``; resumes."""
    deployment = measure(out / "progress.jsonl", options, progress, workers)
    return simulate(out, deployment, options, command)


def simulate(out: Path, deployment: Deployment, options: Options, command: str) -> list[Criterion]:
    """Everything after the measurement; the verdicts."""
    alarms = streams.false_alarms(deployment, options)
    shifts = streams.detections(deployment, options)
    criteria = judge(alarms, shifts, options)
    certified, others = np.split(deployment.own > 1.0, [options.calibration])
    summary: Row = {
        "command": command,
        "options": asdict(options),
        "versions": library_versions(),
        "member": deployment.member,
        "rate_calibration": float(certified.mean()),
        "rate_stationary": float(others.mean()),
        "false_alarms": [{key: row[key] for key in row if key != "alarms"} for row in alarms],
        "shifts": shifts,
        "power": streams.power(deployment, options),
        "criteria": [str(criterion) for criterion in criteria],
    }
    write_csv(out / "calls.csv", _calls(deployment, options), digits=5)
    text = json.dumps(summary, indent=1, default=delay_summary)
    write_whole(out / "result.json", text + "\n")
    words = {**summary, **summary["options"], **_tables(summary), "verdicts": verdicts(criteria)}
    write_page(out, Path(__file__).with_name("page.md"), words)
    _plot(out / "monitor.png", summary, alarms)
    return criteria


def judge(alarms: list[Row], shifts: list[Row], options: Options) -> list[Criterion]:
    """What must hold: few false alarms, and every rate of twice the risk is detected."""
    found = []
    for row in alarms:
        name = f"alarms at most {row['bound']:g} + 3 standard errors"
        text = "{alarm_share:.4f} of {count} streams, limit {limit:.4f}".format(**row)
        found.append(Criterion(row["streams"], name, row["alarm_share"] <= row["limit"], text))
    for row in shifts:
        if row["violation_rate"] < 2.0 * options.risk:
            continue
        share, median = float(np.mean(row[AFTER[0]] < NEVER)), np.median(row[AFTER[0]])
        name = f"a rate of at least {2 * options.risk:g} is detected"
        text = f"rate {row['violation_rate']:.3f}; {share:.1%} of streams within {options.audits} "
        text += f"audits, median {median:.0f}"
        found.append(Criterion(row["name"], name, share == 1.0, text))
    return found


def delay_summary(found: FloatArray) -> dict[str, float | None]:
    """Share that was found, and the median and 90% quantile of the delay over all streams.

    A stream that was never found counts as longer than any.
    """
    ends = np.sort(found)[[math.ceil(level * len(found)) - 1 for level in (0.5, 0.9)]].tolist()
    median, late = (None if end == NEVER else end for end in ends)
    return {"share": float(np.mean(found < NEVER)), "median": median, "p90": late}


def _calls(deployment: Deployment, options: Options) -> list[Row]:
    """Deviation over tolerance of every call that was measured."""
    columns = [f"excess_member_{k + 1}" for k in range(deployment.excess.shape[1])]
    rows = []
    for call, row in enumerate(deployment.excess):
        name = "calibration" if call < options.calibration else "stationary"
        figures = dict(zip(columns, row, strict=True)) | {"estimate": deployment.estimates[call]}
        rows.append({"scenario": name, "call": call, **figures})
    for name, pairs in deployment.shifts.items():
        for call, (value, estimate) in enumerate(zip(*pairs, strict=True)):
            figures = dict.fromkeys(columns) | {columns[deployment.member - 1]: value}
            rows.append({"scenario": name, "call": call, **figures, "estimate": estimate})
    return rows


def _tables(summary: Row) -> Row:
    """The page's tables, by name."""
    audits, headings = summary["options"]["audits"], ["alarm, at once", "alarm, later"]

    def cells(row: Row) -> list[str]:
        found = []
        for delay in (delay_summary(row[name]) for name in AFTER if name in row):
            ends = (delay["median"], delay["p90"])
            median, late = (f"> {audits}" if end is None else f"{end:.0f}" for end in ends)
            found.append(f"{delay['share']:.0%}, {median} ({late})")
        return found

    alarms, shifts = [], []
    for row in summary["false_alarms"]:
        rate = "" if row["violation_rate"] is None else f"{row['violation_rate']:.4f}"
        share, bound = f"{row['alarm_share']:.4f}", f"{row['bound']:g}"
        alarms.append([row["streams"], str(row["count"]), rate, share, bound])
    for row in summary["shifts"]:
        rate = "{:.3f} ({:.3f} to {:.3f})".format(row["violation_rate"], *row["violation_ci95"])
        shifts.append([row["name"], rate, *cells(row)])
    rates = [[f"{row['violation_rate']:g}", *cells(row)] for row in summary["power"]]
    later = ["shift", "violation rate (95%)", *headings, "drift warning, later"]
    return {
        "twice": 2 * summary["options"]["risk"],
        "picture": "![false alarms and delays](monitor.png)",
        "alarms": markdown(["streams", "number", "violation rate", "alarms", "bound"], alarms),
        "changes": "\n".join("- **{name}**: {changes}.".format(**row) for row in summary["shifts"]),
        "delays": markdown(later, shifts),
        "by_rate": markdown(["violation rate", *headings], rates),
    }


def _plot(path: Path, summary: Row, alarms: list[Row]) -> None:
    """Alarms in stationary streams over time, and delays under each shift."""
    figure, (left, right) = subplots(1, 2, 11, 5.2)
    options = summary["options"]
    audits, level = options["audits"], options["level"]
    beyond = 10 * audits  # the edge: where what never comes is drawn
    for row in alarms:
        left.ecdf(np.minimum(row["alarms"], beyond), label=row["streams"])
    both = level + 1 - options["confidence"]
    left.axhline(level, color="0.3", linestyle="--", linewidth=1, label="level")
    left.axhline(both, color="0.6", linestyle=":", linewidth=1, label="level + delta")
    left.set(xlabel="audits (drift: episodes)", ylabel="share of streams with an alarm")
    left.set(title="False alarms in stationary streams", xlim=(0, audits), ylim=(0, 1.3 * both))
    rows = [*summary["shifts"], *summary["power"]]
    kinds = ("alarm, shift at once", f"alarm, after {options['good']} good audits", "drift warning")
    for name, label, height, colour in zip(AFTER, kinds, (0.22, 0.0, -0.22), _COLOURS, strict=True):
        own = {height - place: row[name] for place, row in enumerate(rows) if name in row}
        drawn = [np.minimum(found, beyond) for found in own.values()]
        ends = [np.quantile(found, (0.1, 0.5, 0.9), method="lower") for found in drawn]
        low, middle, high = np.transpose(ends)
        right.hlines(list(own), low, high, color=colour, linewidth=3, alpha=0.5)
        right.plot(middle, list(own), "o", color=colour, label=label, markersize=5)
    names = ["{name}\nrate {violation_rate:.2f}".format(**row) for row in summary["shifts"]]
    names += ["given rate {violation_rate:g}".format(**row) for row in summary["power"]]
    right.set_yticks(-np.arange(len(names)), names)
    right.set(xscale="log", xlim=(0.8, 2.0 * audits))
    right.set(xlabel="audits (drift: episodes) after the shift")
    right.set(title="Delay: median, 10% to 90% (not drawn: beyond)")
    right.axvline(audits, color="0.6", linestyle=":", linewidth=1)
    right.grid(axis="x", alpha=0.3)
    outside_legend(figure)
    save(figure, path)
