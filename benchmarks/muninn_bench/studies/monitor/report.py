"""Files of the monitor's benchmark: raw deviations, figures, a picture and a README."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import library_versions
from muninn_bench.measure.statistics import wilson
from muninn_bench.studies.coverage.statistics import Criterion
from muninn_bench.studies.monitor.deployment import Deployment
from muninn_bench.studies.monitor.plot import plot_monitor
from muninn_bench.studies.monitor.streams import NEVER, Counts
from muninn_bench.studies.monitor.study import Detection, FalseAlarms


def write_report(
    out: Path,
    options: dict[str, Any],
    deployment: Deployment,
    alarms: list[FalseAlarms],
    detections: list[Detection],
    rates: list[tuple[float, Counts, Counts]],
    criteria: list[Criterion],
    command: str,
) -> None:
    """Write everything into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    _write_calls(out / "calls.csv", deployment)
    summary = {
        "command": command,
        "options": options,
        "versions": library_versions(),
        "member": deployment.member,
        "rate_calibration": _rate(deployment.calibration, deployment.member),
        "rate_stationary": _rate(deployment.stationary, deployment.member),
        "false_alarms": [
            {
                "streams": alarm.name,
                "count": len(alarm.alarms),
                "violation_rate": None if np.isnan(alarm.rate) else alarm.rate,
                "alarm_share": alarm.share,
                "bound": alarm.bound,
                "limit": alarm.limit,
            }
            for alarm in alarms
        ],
        "shifts": [_shift(detection, options) for detection in detections],
        "power": [
            {
                "violation_rate": rate,
                "alarm_at_once": delay_summary(at_once),
                "alarm_after_good_audits": delay_summary(later),
            }
            for rate, at_once, later in rates
        ],
        "criteria": [str(criterion) for criterion in criteria],
    }
    (out / "result.json").write_text(json.dumps(summary, indent=1) + "\n")
    plot_monitor(out / "monitor.png", options, alarms, detections, rates)
    (out / "README.md").write_text(_readme(summary, criteria))


def _rate(excess: Any, member: int) -> float:
    return float(np.mean(excess[:, member - 1] > 1.0))


def delay_summary(found: Counts) -> dict[str, float | None]:
    """Share that was found, and the median and 90% quantile of the delay over all streams.

    A stream that was never found counts as longer than any.
    """
    ordered = np.sort(np.where(found == NEVER, np.inf, found))
    summary: dict[str, float | None] = {"share": float(np.mean(found != NEVER))}
    for name, level in (("median", 0.5), ("p90", 0.9)):
        value = float(ordered[min(int(np.ceil(level * len(ordered))) - 1, len(ordered) - 1)])
        summary[name] = value if np.isfinite(value) else None
    return summary


def _shift(detection: Detection, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": detection.scenario.name,
        "changes": detection.scenario.changes,
        "violations": detection.violations,
        "calls": detection.calls,
        "violation_rate": detection.rate,
        "violation_ci95": wilson(detection.violations, detection.calls),
        "twice_the_risk": detection.rate >= 2 * options["risk"],
        "alarm_at_once": delay_summary(detection.at_once),
        "alarm_after_good_audits": delay_summary(detection.later),
        "warning_after_good_episodes": delay_summary(detection.warnings),
    }


def _write_calls(path: Path, deployment: Deployment) -> None:
    """Deviation over tolerance of every call that was measured."""
    members = deployment.calibration.shape[1]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        header = ["scenario", "call", *(f"excess_member_{k + 1}" for k in range(members))]
        writer.writerow([*header, "estimate"])
        stationary = np.concatenate([deployment.calibration, deployment.stationary])
        for call, row in enumerate(stationary):
            split = "calibration" if call < len(deployment.calibration) else "stationary"
            values = [f"{value:.5g}" for value in row]
            writer.writerow([split, call, *values, f"{deployment.estimates[call]:.5g}"])
        for name, (excess, estimates) in deployment.shifts.items():
            for call, value in enumerate(excess):
                row = [""] * members
                row[deployment.member - 1] = f"{value:.5g}"
                writer.writerow([name, call, *row, f"{estimates[call]:.5g}"])


# -- the README ------------------------------------------------------------------------------


def _delay(delay: dict[str, float | None], most: int) -> str:
    median, late = (
        f"> {most}" if delay[name] is None else f"{delay[name]:.0f}" for name in ("median", "p90")
    )
    return f"{delay['share']:.0%}, {median} ({late})"


def _readme(summary: dict[str, Any], criteria: list[Criterion]) -> str:
    options = summary["options"]
    failed = sum(not criterion.passed for criterion in criteria)
    alarms = [
        f"| {entry['streams']} | {entry['count']} | "
        + ("" if entry["violation_rate"] is None else f"{entry['violation_rate']:.4f}")
        + f" | {entry['alarm_share']:.4f} | {entry['bound']:g} |"
        for entry in summary["false_alarms"]
    ]
    most = options["audits"]
    after = ("alarm_at_once", "alarm_after_good_audits", "warning_after_good_episodes")
    shifts = []
    for entry in summary["shifts"]:
        low, high = entry["violation_ci95"]
        cells = " | ".join(_delay(entry[name], most) for name in after)
        rate = f"{entry['violation_rate']:.3f} ({low:.3f} to {high:.3f})"
        shifts.append(f"| {entry['name']} | {rate} | {cells} |")
    power = [
        f"| {entry['violation_rate']:g} | "
        + " | ".join(_delay(entry[name], most) for name in after[:2])
        + " |"
        for entry in summary["power"]
    ]
    changes = [f"- **{entry['name']}**: {entry['changes']}." for entry in summary["shifts"]]
    sections = [
        "# The monitor: false alarms and delays",
        f"Made by `{summary['command']}` (torch {summary['versions']['torch']}). The bundled "
        "Maze2D planner with its committed family; an episode plans, drives 1.9 s of the plan and "
        f"plans again, and one of its two calls, drawn at random, is measured. "
        f"{options['calibration']} such calls certify member {summary['member']} for "
        f"{options['tolerance']:g} at risk {options['risk']:g}, confidence "
        f"{options['confidence']:g}; {options['stationary']} further ones and {options['shifted']} "
        "per shift were measured under it. Streams of audits are drawn from these calls with "
        f"replacement. Alarm and warning have level {options['level']:g}.",
        "![false alarms and delays](monitor.png)",
        f"## Verdicts: {len(criteria) - failed} pass, {failed} fail",
        "```\n" + "\n".join(str(criterion) for criterion in criteria) + "\n```",
        "## False alarms",
        f"Share of streams with an alarm within {options['audits']} audits (drift: episodes).",
        "| streams | number | violation rate | alarms | bound |\n|---|---|---|---|---|\n"
        + "\n".join(alarms),
        "## Shifts",
        "\n".join(changes),
        f"Violation rate without a shift: {summary['rate_calibration']:.3f} on the "
        f"{options['calibration']} calls certified on, {summary['rate_stationary']:.3f} on the "
        f"{options['stationary']} others. Delays: share of streams detected within "
        f"{options['audits']} audits (drift: episodes), median and in brackets the 90% quantile, "
        "counted from the change. *At once*: the shift is there from the first audit. "
        f"*Later*: after {options['good']} good audits, whose e-value has sunk by then. The drift "
        "warning sees every episode, not only audited ones; it says that estimates have changed, "
        "not that the promise is broken. The sizes of the shifts were fixed before any of them was "
        f"measured; those whose rate stays below {2 * options['risk']:g} are no case for an alarm.",
        "| shift | violation rate (95%) | alarm, at once | alarm, later | drift warning, later |\n"
        "|---|---|---|---|---|\n" + "\n".join(shifts),
        "## Delays by violation rate",
        "The same for given rates: what a shift of that size would take.",
        "| violation rate | alarm, at once | alarm, later |\n|---|---|---|\n" + "\n".join(power),
        "`calls.csv`: every measured call (deviation over tolerance per member, error estimate); "
        "`result.json`: all figures.",
    ]
    return "\n\n".join(sections) + "\n"
