"""Write a run: CSV files, a page with its tables, the picture.

The page is made from the CSV files alone, so that subjects can be measured in several runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muninn.bench.latency.methods import (
    NETWORK_EAGER,
    NETWORK_GRAPH,
    STATIC_EAGER,
    STATIC_GRAPH,
)
from muninn.bench.latency.plot import plot_latency
from muninn.bench.latency.rows import (
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
from muninn.bench.latency.targets import Target, targets


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
    if picture and any(row.deviation_p95 is not None for row in rows):
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
        "call; methods with long calls took part in fewer rounds (column calls). What the last run "
        "left out is of earlier runs. Deviation: from "
        "Full eager with the same noise, RMS per time step; of networks with random weights it "
        "means nothing. The gate that is timed has a threshold so tight that it spends its cap "
        "early: its time is a gate's, its deviation is not. Memory: most that the first calls "
        "allocate beyond the weights, capture included.",
        "## Targets",
        target_table(found),
    ]
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
        parts += ["## Batches", batch_table(batches)]
    if growth:
        parts += ["## Growth of cost", growth_table(growth)]
    if profile:
        parts += ["## Where the time goes", profile_table(profile)]
    return "\n\n".join(parts) + "\n"


def summary_table(rows: Sequence[Row]) -> str:
    """One line per method, one column per planner, in markdown: what the README shows."""
    planners = {row.subject: f"{row.title}, {row.precision}" for row in rows}
    found = {(row.method, row.subject): row for row in rows if row.p50_ms is not None}
    names = {
        row.method: f"{row.method_title}, {row.engine}"
        for row in found.values()
        if row.method not in (NETWORK_EAGER, NETWORK_GRAPH)
    }
    lines = []
    for method, name in names.items():
        own = [found.get((method, subject)) for subject in planners]
        cells = [f"{_ms(row.p50_ms)} / {_ms(row.p99_ms)}" if row else "-" for row in own]
        lines.append([f"**{name}**" if name.startswith("Muninn") else name, *cells])
    best = STATIC_GRAPH if STATIC_GRAPH in names else STATIC_EAGER
    static = [found.get((best, subject)) for subject in planners]
    for name, ratios in (
        ("eager", [row.over_eager if row else None for row in static]),
        ("graph", [row.over_graph if row else None for row in static]),
    ):
        if any(ratios):
            lines.append([f"{names[best]}: over Full, {name}", *map(_times, ratios)])
    return _table(" | ".join(["method, engine", *planners.values()]), lines)


def method_table(rows: Sequence[Row]) -> str:
    """The methods of one subject, in markdown."""
    return _table(
        "method | engine | evaluations | p50 ms | p99 ms | max ms | calls | deviation p95 | "
        "memory MB | over Full eager | over Full graph",
        [
            [
                row.method_title,
                row.engine,
                _figure(row.evaluations, ".1f"),
                _ms(row.p50_ms),
                _ms(row.p99_ms),
                _ms(row.max_ms),
                str(row.calls),
                _figure(row.deviation_p95, ".2g"),
                _figure(row.memory_mb, ".0f"),
                _times(row.over_eager),
                _times(row.over_graph),
            ]
            for row in rows
            if row.p50_ms is not None
        ],
    )


def batch_table(rows: Sequence[BatchRow]) -> str:
    """Throughput, in markdown."""
    return _table(
        "planner | batch | method | engine | evaluations | p50 ms | plans/s | over Full | "
        "share of steps/evaluations",
        [
            [
                row.title,
                str(row.batch),
                row.method,
                row.engine,
                f"{row.evaluations:.1f}",
                _ms(row.p50_ms),
                _ms(row.plans_per_second),
                _times(row.over_full),
                f"{row.over_full / row.ideal:.2f}",
            ]
            for row in rows
        ],
    )


def growth_table(rows: Sequence[GrowthRow]) -> str:
    """The growth grid, in markdown."""
    return _table(
        "varied | H | T | d | batch | parameters | evaluations | Full ms | Muninn ms | speed-up",
        [
            [
                row.axis,
                str(row.horizon),
                str(row.steps),
                str(row.dim),
                str(row.batch),
                f"{row.parameters:,}",
                str(row.evaluations),
                _ms(row.full_ms),
                _ms(row.muninn_ms),
                _times(row.over_full),
            ]
            for row in rows
        ],
    )


def profile_table(rows: Sequence[ProfileRow]) -> str:
    """Parts of a call, in markdown."""
    return _table(
        "planner | method | time of | part | ms | share | times",
        [
            [
                row.subject,
                row.method,
                row.view,
                row.part,
                f"{row.ms:.3f}",
                f"{row.share:.1%}",
                f"{row.count:.0f}",
            ]
            for row in rows
        ],
    )


def target_table(found: Sequence[Target]) -> str:
    """Targets, measured figures and verdicts, in markdown."""
    return _table(
        "planner | target | wanted | measured | verdict",
        [
            [
                target.subject,
                target.promise,
                f"{'>=' if target.at_least else '<='} {target.limit:g}",
                _figure(target.measured, ".3g"),
                target.verdict,
            ]
            for target in found
        ],
    )


def _table(header: str, lines: Sequence[Sequence[str]]) -> str:
    columns = header.split(" | ")
    text = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*text, *(f"| {' | '.join(line)} |" for line in lines)])


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ms(value: float | None) -> str:
    """Three digits, or the whole number where it has more."""
    return _figure(value, ".0f" if value is not None and value >= 100.0 else ".3g")


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
