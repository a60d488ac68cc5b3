"""The tables of a run, in markdown."""

from __future__ import annotations

from collections.abc import Sequence

from muninn_bench.studies.latency.methods import (
    FULL_EAGER,
    NETWORK_EAGER,
    NETWORK_GRAPH,
    STATIC_EAGER,
    STATIC_GRAPH,
)
from muninn_bench.studies.latency.profile import NETWORK
from muninn_bench.studies.latency.rows import BatchRow, GrowthRow, ProfileRow, Row
from muninn_bench.studies.latency.targets import Target

FEWEST_FOR_P99 = 50
"""Timed calls below which a 99th percentile is the largest call by another name."""


def summary_table(rows: Sequence[Row]) -> str:
    """One line per method, one column per planner: what the README shows.

    Of fewer than :data:`FEWEST_FOR_P99` calls the largest stands for the 99th percentile.
    """
    planners = {row.subject: _planner(row) for row in rows}
    found = {(row.method, row.subject): row for row in rows if row.p50_ms is not None}
    names = {
        row.method: f"{row.method_title}, {row.engine}"
        for row in found.values()
        if row.method not in (NETWORK_EAGER, NETWORK_GRAPH)
    }
    lines = []
    for method, name in names.items():
        own = [found.get((method, subject)) for subject in planners]
        cells = [f"{_ms(row.p50_ms)} / {_tail(row)}" if row else "-" for row in own]
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
    """The methods of one subject; no 99th percentile of fewer calls than it takes.

    Nor a deviation where weights are random: plans of such a network say nothing.
    """
    return _table(
        "method | engine | evaluations | p50 ms | p99 ms | max ms | calls | warm-up | "
        "deviation p95 | memory MB | over Full eager | over Full graph",
        [
            [
                row.method_title,
                row.engine,
                _figure(row.evaluations, ".1f"),
                _ms(row.p50_ms),
                _ms(row.p99_ms) if row.calls >= FEWEST_FOR_P99 else "-",
                _ms(row.max_ms),
                str(row.calls),
                str(row.warm_up),
                _figure(row.deviation_p95 if row.trained else None, ".2g"),
                _figure(row.memory_mb, ".0f"),
                _times(row.over_eager),
                _times(row.over_graph),
            ]
            for row in rows
            if row.p50_ms is not None
        ],
    )


def batch_table(rows: Sequence[BatchRow]) -> str:
    """Throughput."""
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
    """The growth grid."""
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
    """Parts of a call."""
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
    """Targets, measured figures and verdicts."""
    return _table(
        "planner | target | wanted | measured | verdict",
        [
            [
                target.subject,
                target.promise,
                _wanted(target),
                _figure(target.measured, ".3g"),
                target.verdict,
            ]
            for target in found
        ],
    )


def _wanted(target: Target) -> str:
    if target.limit is None:
        return "-"
    return f"{'>=' if target.at_least else '<='} {target.limit:g}"


def outside_network(rows: Sequence[ProfileRow], timed: Sequence[Row]) -> list[str]:
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
    lines = []
    for subject in dict.fromkeys(row.subject for row in rows):
        own = {
            row.method: 1.0 - row.share
            for row in rows
            if row.subject == subject and row.view == "host" and row.part == NETWORK
        }
        if FULL_EAGER in own and STATIC_EAGER in own:
            static, full = own[STATIC_EAGER], own[FULL_EAGER]
            lines.append(
                f"- `{subject}`: {static:.1%} of a static call and {full:.1%} of a full one are "
                f"outside the network, which leaves {(1.0 - static) / (1.0 - full):.2f} of steps / "
                "evaluations"
                + (
                    f"; the evaluations alone, timed, had {alone[subject]:.2f}."
                    if subject in alone
                    else "."
                )
            )
    return lines


def _table(header: str, lines: Sequence[Sequence[str]]) -> str:
    columns = header.split(" | ")
    text = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*text, *(f"| {' | '.join(line)} |" for line in lines)])


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ms(value: float | None) -> str:
    """Three digits, or the whole number where it has more."""
    return _figure(value, ".0f" if value is not None and value >= 100.0 else ".3g")


def _planner(row: Row) -> str:
    return f"{row.title}, {row.precision}" + ("" if row.trained else ", untrained")


def _tail(row: Row) -> str:
    return _ms(row.p99_ms) if row.calls >= FEWEST_FOR_P99 else f"max {_ms(row.max_ms)}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
