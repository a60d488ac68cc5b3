"""Files of the monitor's study: raw deviations, figures, a picture and a README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muninn.files import write_whole
from muninn_bench.measure.verdicts import Criterion, verdicts
from muninn_bench.report.style import save, subplots
from muninn_bench.report.table import markdown, write_csv
from muninn_bench.studies.monitor.deployment import Deployment
from muninn_bench.studies.monitor.streams import NEVER, Counts

AFTER = ("alarm_at_once", "alarm_after_good_audits", "warning_after_good_episodes")
"""Columns of delays: the shift comes at once, or after good audits or episodes."""


def write_report(
    out: Path, summary: dict[str, Any], deployment: Deployment, criteria: Sequence[Criterion]
) -> None:
    """Write everything into ``out``."""
    write_csv(out / "calls.csv", _calls(deployment, summary["options"]["calibration"]), digits=5)
    _plot(out / "monitor.png", summary)
    alarms = [{key: row[key] for key in row if key != "alarms"} for row in summary["false_alarms"]]
    text = json.dumps(summary | {"false_alarms": alarms}, indent=1, default=delay_summary)
    write_whole(out / "result.json", text + "\n")
    write_whole(out / "README.md", _readme(summary, criteria))


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


def _calls(deployment: Deployment, certified: int) -> list[dict[str, Any]]:
    """Deviation over tolerance of every call that was measured."""
    columns = [f"excess_member_{k + 1}" for k in range(deployment.excess.shape[1])]
    rows = []
    for call, (row, estimate) in enumerate(
        zip(deployment.excess, deployment.estimates, strict=True)
    ):
        split = "calibration" if call < certified else "stationary"
        figures = dict(zip(columns, row, strict=True))
        rows.append({"scenario": split, "call": call, **figures, "estimate": estimate})
    for name, pairs in deployment.shifts.items():
        for call, (value, estimate) in enumerate(zip(*pairs, strict=True)):
            figures = dict.fromkeys(columns) | {columns[deployment.member - 1]: value}
            rows.append({"scenario": name, "call": call, **figures, "estimate": estimate})
    return rows


def _plot(path: Path, summary: dict[str, Any]) -> None:
    """Alarms in stationary streams over time, and delays under each shift."""
    figure, (left, right) = subplots(1, 2, 11, 5.2)
    options = summary["options"]
    audits, level = options["audits"], options["level"]
    colours = ("tab:blue", "tab:green", "tab:red", "tab:purple")
    for row, colour in zip(summary["false_alarms"], colours, strict=True):
        at = np.sort(row["alarms"][row["alarms"] != NEVER])
        share = np.arange(len(at) + 1) / row["count"]
        places, shares = [0, *at, audits], [*share, share[-1]]
        left.step(places, shares, where="post", color=colour, label=row["streams"])
    both = level + 1 - options["confidence"]
    left.axhline(level, color="0.3", linestyle="--", linewidth=1, label="level")
    left.axhline(both, color="0.6", linestyle=":", linewidth=1, label="level + delta")
    left.set(
        title="False alarms in stationary streams",
        xlabel="audits (drift: episodes)",
        ylabel="share of streams with an alarm",
        ylim=(0, 1.3 * both),
    )
    left.legend(fontsize=8)
    kinds = (
        (AFTER[0], 0.22, "tab:red", "alarm, shift at once"),
        (AFTER[1], 0.0, "tab:orange", f"alarm, after {options['good']} good audits"),
        (AFTER[2], -0.22, "tab:purple", "drift warning (episodes)"),
    )
    labels = ["{name}\nrate {violation_rate:.2f}".format(**row) for row in summary["shifts"]]
    labels += ["given rate {violation_rate:g}".format(**row) for row in summary["power"]]
    for place, row in enumerate((*summary["shifts"], *summary["power"])):
        for name, offset, colour, label in kinds:
            if name in row:  # what was never found lies beyond the edge
                values = np.sort(np.where(row[name] == NEVER, 10.0 * audits, row[name]))
                low, middle, high = (values[int(q * (len(values) - 1))] for q in (0.1, 0.5, 0.9))
                height, own = offset - place, None if place else label
                right.plot([low, high], [height, height], color=colour, linewidth=3, alpha=0.5)
                right.plot([middle], [height], "o", color=colour, label=own, markersize=5)
    right.set_yticks([-place for place in range(len(labels))], labels)
    right.set(
        xscale="log",
        xlim=(0.8, 2.0 * audits),
        title="Delay: median, 10% to 90% (not drawn: beyond)",
        xlabel="audits (drift: episodes) after the shift",
    )
    right.axvline(audits, color="0.6", linestyle=":", linewidth=1)
    right.grid(axis="x", alpha=0.3)
    right.legend(fontsize=8, loc="upper right")
    save(figure, path)


def _readme(summary: dict[str, Any], criteria: Sequence[Criterion]) -> str:
    options = summary["options"]
    alarms = [
        [row["streams"], str(row["count"]),
         "" if row["violation_rate"] is None else f"{row['violation_rate']:.4f}",
         f"{row['alarm_share']:.4f}", f"{row['bound']:g}"]
        for row in summary["false_alarms"]
    ]  # fmt: skip

    def cells(row: dict[str, Any]) -> list[str]:
        found = []
        for delay in (delay_summary(row[name]) for name in AFTER if name in row):
            median, late = (
                f"> {options['audits']}" if delay[name] is None else f"{delay[name]:.0f}"
                for name in ("median", "p90")
            )
            found.append(f"{delay['share']:.0%}, {median} ({late})")
        return found

    shifts = []
    for row in summary["shifts"]:
        low, high = row["violation_ci95"]
        rate = f"{row['violation_rate']:.3f} ({low:.3f} to {high:.3f})"
        shifts.append([row["name"], rate, *cells(row)])
    headings = ("alarm, at once", "alarm, later", "drift warning, later")
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
        verdicts(criteria),
        "## False alarms",
        f"Share of streams with an alarm within {options['audits']} audits (drift: episodes).",
        markdown(("streams", "number", "violation rate", "alarms", "bound"), alarms),
        "## Shifts",
        "\n".join("- **{name}**: {changes}.".format(**row) for row in summary["shifts"]),
        f"Violation rate without a shift: {summary['rate_calibration']:.3f} on the "
        f"{options['calibration']} calls certified on, {summary['rate_stationary']:.3f} on the "
        f"{options['stationary']} others. Delays: share of streams detected within "
        f"{options['audits']} audits (drift: episodes), median and in brackets the 90% quantile, "
        "counted from the change. *At once*: the shift is there from the first audit. "
        f"*Later*: after {options['good']} good audits, whose e-value has sunk by then. The drift "
        "warning sees every episode, not only audited ones; it says that estimates have changed, "
        "not that the promise is broken. The sizes of the shifts were fixed before any of them was "
        f"measured; those whose rate stays below {2 * options['risk']:g} are no case for an alarm.",
        markdown(("shift", "violation rate (95%)", *headings), shifts),
        "## Delays by violation rate",
        "The same for given rates: what a shift of that size would take.",
        markdown(
            ("violation rate", *headings[:2]),
            [[f"{row['violation_rate']:g}", *cells(row)] for row in summary["power"]],
        ),
        "`calls.csv`: every measured call (deviation over tolerance per member, error estimate); "
        "`result.json`: all figures.",
    ]
    return "\n\n".join(sections) + "\n"
