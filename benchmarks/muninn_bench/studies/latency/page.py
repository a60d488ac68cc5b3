"""Write a run: CSV files, a page with its tables, the picture.

The page is made from the CSV files alone, so that planners can be measured in several runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muninn.files import write_whole
from muninn_bench.report.table import markdown, read_csv, write_csv
from muninn_bench.studies.latency.plot import plot_latency
from muninn_bench.studies.latency.profile import NETWORK
from muninn_bench.studies.latency.rows import (
    BatchRow,
    GrowthRow,
    LatencyRow,
    ProfileRow,
    TimedCall,
    cell,
    merge,
    table,
)
from muninn_bench.studies.latency.targets import Target, targets
from muninn_bench.studies.latency.ways import (
    FULL_EAGER,
    NETWORK_EAGER,
    NETWORK_GRAPH,
    STATIC_EAGER,
    STATIC_GRAPH,
)

Measured = dict[type[Any], list[Any]]
"""Rows by their kind."""

FILES: dict[type[Any], str] = {
    LatencyRow: "",
    TimedCall: "_calls",
    BatchRow: "_batch",
    GrowthRow: "_growth",
    ProfileRow: "_profile",
}
"""The CSV file of each kind of row, after the name of the device."""

ABOUT = (
    "All methods of a planner took turns in one run, the device idle before and after each call; "
    "methods with long calls took part in fewer rounds, also of the warm-up (see columns calls and "
    "warm-up). Of fewer than 50 calls the largest is given, no p99. What the last run left out is "
    "of earlier runs. Calls of Muninn look at network and arithmetic first, as under a "
    "certificate. Deviation: from Full eager with the same noise, RMS per time step; of networks "
    "with random weights it means nothing and is not shown. The static plan, FewSteps and "
    "DPM-Solver++ are tuned on the same other calls (anchors; spacing and order), and evenly "
    "spread where weights are random. The threshold of the gate called Muninn gated is so tight "
    "that nearly all calls spend their cap, early: its time is a gate's, its deviation is not, and "
    "its p99 tells nothing of calls that take more evaluations than others. The one with its own "
    "threshold has the static plan's evaluations in the mean and a cap of 1.5 times as many. "
    "Memory: most that the first calls allocate beyond the weights, capture included."
)
BATCHES = (
    "## Batches\n\n"
    "A gate's batch takes as many rounds as its slowest row, and its last rounds hold few rows but "
    "take nearly as long as one call's: the cap decides what a batch costs. It is 1.5 times the "
    "static plan's evaluations, 2 times with the loose cap."
)


def write_latency(
    out: Path, device: str, measured: Measured, command: str, *, picture: bool = True
) -> list[Target]:
    """Write everything of a device, and return its targets.

    Planners of earlier runs that were not measured now are kept.

    Args:
        out: folder.
        device: ``cpu`` or ``cuda``; names of files begin with it.
        measured: rows of this run.
        command: that was typed.
        picture: whether to draw it too; it takes a second.
    """
    kept: Measured = {}
    for kind, ending in FILES.items():
        path = out / f"{device}{ending}.csv"
        kept[kind] = merge(read_csv(path, kind), measured.get(kind, []))
        if kept[kind]:
            write_csv(path, kept[kind], digits=7)
    rows: list[LatencyRow] = kept[LatencyRow]
    if picture and any(row.shown_deviation is not None for row in rows):
        plot_latency(out / f"{device}.png", rows)
    found = targets(device, rows, kept[BatchRow])
    machines = sorted({row.hardware for row in [*rows, *kept[GrowthRow]]})
    parts = [
        f"# Latency on {device}",
        f"{'; '.join(machines)}. Last run: `{command}`.",
        ABOUT,
        "## Targets",
        table(Target.TABLE, found),
    ]
    if device == "cpu" and kept[ProfileRow]:  # on a GPU the graphs of evaluations alone say it
        parts.append("\n".join(outside_network(kept[ProfileRow], rows)))
    if rows:
        parts.append("## Summary, milliseconds a call at batch 1, p50 / p99")
        parts += [summary_table(rows), f"![time against deviation]({device}.png)"]
    for subject in dict.fromkeys(row.subject for row in rows):
        parts += planner_section([row for row in rows if row.subject == subject])
    for heading, kind in (
        (BATCHES, BatchRow),
        ("## Growth of cost", GrowthRow),
        ("## Where the time goes", ProfileRow),
    ):
        if kept[kind]:
            parts += [heading, table(kind.TABLE, kept[kind])]
    write_whole(out / f"{device}.md", "\n\n".join(parts) + "\n")
    return found


def planner_section(rows: Sequence[LatencyRow]) -> list[str]:
    """The section of one planner; ways that could not run are notes below the table."""
    first = rows[0]
    weights = "trained" if first.trained else "random weights"
    return [
        f"## {first.title}, {first.precision}",
        f"`{first.subject}`: {first.parameters:,} parameters, {weights}, {first.horizon} x "
        f"{first.dim}, {first.steps} DDIM steps, batch 1.",
        table(LatencyRow.TABLE, [row for row in rows if row.p50_ms is not None]),
        *(f"- {row.method_title} ({row.engine}): {row.note}" for row in rows if row.note),
    ]


def summary_table(rows: Sequence[LatencyRow]) -> str:
    """One line per way, one column per planner: what the README shows.

    Where there are too few calls for a 99th percentile, the largest stands for it.
    """
    planners = {
        row.subject: f"{row.title}, {row.precision}" + ("" if row.trained else ", untrained")
        for row in rows
    }
    found = {(row.method, row.subject): row for row in rows if row.p50_ms is not None}
    names = {
        row.method: f"{row.method_title}, {row.engine}"
        for row in found.values()
        if row.method not in (NETWORK_EAGER, NETWORK_GRAPH)
    }

    def times(row: LatencyRow | None) -> str:
        if row is None:
            return "-"
        largest = f"max {cell(row.max_ms, 'ms')}"
        tail = largest if row.shown_p99 is None else cell(row.shown_p99, "ms")
        return f"{cell(row.p50_ms, 'ms')} / {tail}"

    lines = []
    for method, name in names.items():
        cells = [times(found.get((method, subject))) for subject in planners]
        lines.append([f"**{name}**" if name.startswith("Muninn") else name, *cells])
    best = STATIC_GRAPH if STATIC_GRAPH in names else STATIC_EAGER
    for engine in ("eager", "graph"):
        static = [found.get((best, subject)) for subject in planners]
        ratios = [getattr(row, f"over_{engine}", None) for row in static]
        if any(ratios):
            cells = [cell(ratio, "x") for ratio in ratios]
            lines.append([f"{names[best]}: over Full, {engine}", *cells])
    return markdown(["method, engine", *planners.values()], lines)


def outside_network(rows: Sequence[ProfileRow], timed: Sequence[LatencyRow]) -> list[str]:
    """Per planner, what its profile says of eager static calls, in a sentence.

    A cache saves evaluations only. With shares ``s`` and ``f`` of a static and a full call spent
    outside the network, and evaluations of equal cost, the speed-up is ``(1 - s) / (1 - f)`` of
    steps / evaluations. Whether evaluations did have equal cost, those timed alone say.
    """
    alone = {
        row.subject: row.over_eager * row.evaluations / row.steps
        for row in timed
        if row.method == NETWORK_EAGER and row.over_eager and row.evaluations
    }
    words = {
        subject: f"; the evaluations alone, timed, had {ratio:.2f}."
        for subject, ratio in alone.items()
    }
    hosts = [row for row in rows if row.view == "host" and row.part == NETWORK]
    inside = {(row.subject, row.method): row.share for row in hosts}
    return [
        f"- `{subject}`: {1.0 - static:.1%} of a static call and {1.0 - full:.1%} of a full one "
        f"are outside the network, which leaves {static / full:.2f} of steps / evaluations"
        + words.get(subject, ".")
        for (subject, method), static in inside.items()
        if method == STATIC_EAGER and (full := inside.get((subject, FULL_EAGER)))
    ]
