"""One picture: alarms in stationary streams over time, and delays under each shift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from muninn_bench.studies.monitor.streams import NEVER, Counts
from muninn_bench.studies.monitor.study import Detection, FalseAlarms

_COLOURS = ("tab:blue", "tab:green", "tab:red", "tab:purple")


def plot_monitor(
    path: Path,
    options: dict[str, Any],
    alarms: list[FalseAlarms],
    detections: list[Detection],
    rates: list[tuple[float, Counts, Counts]],
) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.2), constrained_layout=True)
    audits = options["audits"]
    for alarm, colour in zip(alarms, _COLOURS, strict=True):
        at = np.sort(alarm.alarms[alarm.alarms != NEVER])
        share = np.arange(1, len(at) + 1) / len(alarm.alarms)
        left.step(
            [0, *at, audits], [0, *share, share[-1] if len(at) else 0], where="post",
            color=colour, label=alarm.name,
        )  # fmt: skip
    left.axhline(options["level"], color="0.3", linestyle="--", linewidth=1, label="level")
    both = options["level"] + 1 - options["confidence"]
    left.axhline(both, color="0.6", linestyle=":", linewidth=1, label="level + delta")
    left.set(
        title="False alarms in stationary streams",
        xlabel="audits (drift: episodes)",
        ylabel="share of streams with an alarm",
        ylim=(0, 1.3 * both),
    )
    left.legend(fontsize=8)
    rows: list[tuple[str, list[Counts]]] = [
        (f"{one.scenario.name}\nrate {one.rate:.2f}", [one.at_once, one.later, one.warnings])
        for one in detections
    ]
    rows += [(f"given rate {rate:g}", [at_once, later]) for rate, at_once, later in rates]
    kinds = (
        (0.22, "tab:red", "alarm, shift at once"),
        (0.0, "tab:orange", f"alarm, after {options['good']} good audits"),
        (-0.22, "tab:purple", "drift warning (episodes)"),
    )
    for place, (_, row) in enumerate(rows):
        for found, (offset, colour, label) in zip(row, kinds, strict=False):
            _delay(right, found, offset - place, colour, None if place else label, audits)
    right.set_yticks([-place for place in range(len(rows))], [label for label, _ in rows])
    right.set_xscale("log")
    right.set(
        xlim=(0.8, 2.0 * audits),
        title="Delay: median, 10% to 90% (not drawn: beyond)",
        xlabel="audits (drift: episodes) after the shift",
    )
    right.axvline(audits, color="0.6", linestyle=":", linewidth=1)
    right.grid(axis="x", alpha=0.3)
    right.legend(fontsize=8, loc="upper right")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _delay(axis: Any, found: Any, height: float, colour: str, label: str | None, most: int) -> None:
    """A bar from the 10% to the 90% quantile; what was never found lies beyond the edge."""
    values = np.sort(np.where(found == NEVER, 10.0 * most, found))
    low, middle, high = (values[int(q * (len(values) - 1))] for q in (0.1, 0.5, 0.9))
    axis.plot([low, high], [height, height], color=colour, linewidth=3, alpha=0.5)
    axis.plot([middle], [height], "o", color=colour, label=label, markersize=5)
