"""Write a run: CSV files, a page with its tables, the picture.

The page is made from the CSV files alone, so that subjects can be measured in several runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muninn_bench.studies.latency.plot import plot_latency
from muninn_bench.studies.latency.rows import (
    BatchRow,
    Call,
    GrowthRow,
    Kept,
    ProfileRow,
    Row,
    merge,
    read_csv,
    write_csv,
)
from muninn_bench.studies.latency.tables import (
    batch_table,
    growth_table,
    method_table,
    outside_network,
    profile_table,
    summary_table,
    target_table,
)
from muninn_bench.studies.latency.targets import Target, targets

BATCHES = (
    "A gate's batch takes as many rounds as its slowest row, and its last rounds hold few rows but "
    "take nearly as long as one call's: the cap decides what a batch costs. It is 1.5 times the "
    "static plan's evaluations, 2 times with the loose cap."
)


@dataclass
class Results:
    """What a run measured so far."""

    rows: list[Row] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    batches: list[BatchRow] = field(default_factory=list)
    growth: list[GrowthRow] = field(default_factory=list)
    profile: list[ProfileRow] = field(default_factory=list)
    profile_text: dict[str, str] = field(default_factory=dict)


def write_latency(
    out: Path, device: str, results: Results, command: str, *, picture: bool = True
) -> list[Target]:
    """Write everything of a device; subjects of earlier runs that were not measured now are kept.

    Args:
        out: folder.
        device: ``cpu`` or ``cuda``; names of files begin with it.
        results: of this run.
        command: that was typed.
        picture: whether to draw it too; it takes a second.

    Returns:
        The targets of the device.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = _keep(out / f"{device}.csv", Row, results.rows)
    _keep(out / f"{device}_calls.csv", Call, results.calls)
    batches = _keep(out / f"{device}_batch.csv", BatchRow, results.batches)
    growth = _keep(out / f"{device}_growth.csv", GrowthRow, results.growth)
    profile = _keep(out / f"{device}_profile.csv", ProfileRow, results.profile)
    for subject, text in results.profile_text.items():
        (out / f"{device}_profile_{subject}.txt").write_text(text)
    if picture and any(row.trained and row.deviation_p95 is not None for row in rows):
        plot_latency(out / f"{device}.png", rows)
    found = targets(device, rows, batches)
    page = _page(device, rows, batches, growth, profile, found, command)
    (out / f"{device}.md").write_text(page)
    return found


def _keep(path: Path, kind: type[Kept], new: Sequence[Kept]) -> list[Kept]:
    """The rows of a file after the new ones were merged into it."""
    merged = merge(read_csv(path, kind), new)
    if merged:
        write_csv(path, merged)
    return merged


def _page(
    device: str,
    rows: Sequence[Row],
    batches: Sequence[BatchRow],
    growth: Sequence[GrowthRow],
    profile: Sequence[ProfileRow],
    found: Sequence[Target],
    command: str,
) -> str:
    machines = sorted({row.hardware for row in rows} | {row.hardware for row in growth})
    parts = [
        f"# Latency on {device}",
        f"{'; '.join(machines)}. Last run: `{command}`.",
        "All methods of a planner took turns in one run, the device idle before and after each "
        "call; methods with long calls took part in fewer rounds, also of the warm-up (see columns "
        "calls and warm-up). Of fewer than 50 calls the largest is given, no p99. What the last "
        "run left out is of earlier runs. Calls of Muninn look at network and arithmetic first, "
        "as under a certificate. Deviation: from "
        "Full eager with the same noise, RMS per time step; of networks with random weights it "
        "means nothing and is not shown. The static plan, FewSteps and DPM-Solver++ are tuned on "
        "the same other calls (anchors; spacing and order), and evenly spread where weights are "
        "random. The threshold of the gate called Muninn gated is so tight that nearly all "
        "calls spend their cap, early: its time is a gate's, its deviation is not, and its p99 "
        "tells nothing of calls that take more evaluations than others. The one with its own "
        "threshold has the static plan's evaluations in the mean and a cap of 1.5 times as many. "
        "Memory: most that the first calls allocate beyond the weights, capture included.",
        "## Targets",
        target_table(found),
    ]
    if device == "cpu":  # on a GPU the graphs of evaluations alone say it
        parts += ["\n".join(outside_network(profile, rows))] if profile else []
    if rows:
        parts += ["## Summary, milliseconds a call at batch 1, p50 / p99", summary_table(rows)]
        parts.append(f"![time against deviation]({device}.png)")
    for subject in dict.fromkeys(row.subject for row in rows):
        own = [row for row in rows if row.subject == subject]
        first = own[0]
        weights = "trained" if first.trained else "random weights"
        parts.append(
            f"## {first.title}, {first.precision}\n\n`{subject}`: {first.parameters:,} parameters, "
            f"{weights}, {first.horizon} x {first.dim}, {first.steps} DDIM steps, batch 1."
        )
        parts.append(method_table(own))
        parts += [f"- {row.method_title} ({row.engine}): {row.note}" for row in own if row.note]
    if batches:
        parts += ["## Batches", BATCHES, batch_table(batches)]
    if growth:
        parts += ["## Growth of cost", growth_table(growth)]
    if profile:
        parts += ["## Where the time goes", profile_table(profile)]
    return "\n\n".join(parts) + "\n"
