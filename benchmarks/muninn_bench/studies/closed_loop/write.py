"""Files of a study: every episode, every method, paired tests, pictures, and a page."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muninn.certify.certificate import Certificate
from muninn_bench.report.tables import title
from muninn_bench.studies.closed_loop import plots, tables
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight
from muninn_bench.studies.closed_loop.methods import METHODS, ClosedLoopPrograms, needs
from muninn_bench.studies.closed_loop.recording import Recorder, bound_of, draw_gif
from muninn_bench.studies.closed_loop.traces import Replayed, Trace

DEPLOYED = "combined"
PAIRS = (
    ("full", "muninn-only"),
    ("full", "combined"),
    ("full-instant", "muninn-only"),
    ("full-instant", "combined"),
    ("fewsteps", "muninn-only"),
    ("muninn-only", "combined"),
    ("muninn-only", "dampen"),
    ("muninn-only", "resample+dampen"),
    ("muninn-only", "full-override"),
)


def write_results(
    out: Path,
    programs: ClosedLoopPrograms,
    flights: Sequence[Flight],
    trace: Trace,
    command: str,
) -> list[tables.Row]:
    """Write everything; returns the rows of the summary."""
    out.mkdir(parents=True, exist_ok=True)
    certificate = programs.fast.certificate
    assert certificate is not None and certificate.tolerance is not None
    flown = [name for name in METHODS if any(flight.method == name for flight in flights)]
    rows = [
        tables.method_row(tables.of_method(flights, name), certificate.tolerance, certificate.risk)
        for name in flown
    ]
    pairs = [tables.compare(flights, *pair) for pair in PAIRS if set(pair) <= set(flown)]
    _csv(out / "episodes.csv", [tables.episode_row(flight) for flight in flights])
    _csv(out / "summary.csv", rows)
    _csv(out / "comparisons.csv", [asdict(pair) for pair in pairs])
    _csv(out / "calls.csv", _call_rows(flights, certificate))
    plots.plot_outcomes(out / "outcomes.png", rows)
    if DEPLOYED in flown:
        plots.plot_calls(out / "calls.png", flights, DEPLOYED, certificate)
        _draw_flight(out, programs, flights, trace, certificate)
    page = _page(out, programs, rows, pairs, trace, certificate, command)
    (out / "summary.md").write_text(page)
    return rows


def _call_rows(flights: Sequence[Flight], certificate: Certificate) -> list[tables.Row]:
    """Every call of the deployed program."""
    bound = bound_of(certificate)
    return [
        {
            "seed": flight.seed,
            "taken_s": round(call.taken, 4),
            "latency_s": round(call.seconds, 5),
            "clearance_m": round(call.clearance, 4),
            "evaluations": call.evaluations,
            "rank": None if call.signal is None else round(call.signal, 4),
            "dhat_m": None if math.isnan(bound(call)) else round(bound(call), 5),
            "mode": call.mode,
            "action": call.action,
            "source": call.source,
            "factor": call.factor,
            "reason": call.reason,
        }
        for flight in tables.of_method(flights, DEPLOYED)
        for call in flight.calls
    ]


def _draw_flight(
    out: Path,
    programs: ClosedLoopPrograms,
    flights: Sequence[Flight],
    trace: Trace,
    certificate: Certificate,
) -> None:
    """The flight of the deployed program that escaped most narrowly, flown again from its trace."""
    candidates = tables.of_method(flights, DEPLOYED)
    escaped = [flight for flight in candidates if flight.outcome == "success"] or candidates
    chosen = min(escaped, key=lambda flight: flight.smallest_clearance)
    recorder = Recorder(programs.platform)
    ticket = Ticket(METHODS[DEPLOYED], chosen.seed)
    latency = Replayed(chosen.jobs)
    fly_one(programs, ticket, latency, needs(programs.platform, trace), watcher=recorder)
    plots.plot_timeline(out / "timeline.png", recorder, certificate)
    title = f"{programs.platform.name}, {METHODS[DEPLOYED].title}: {chosen.outcome}"
    draw_gif(out / "flight.gif", recorder, certificate, title)


def _csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


# -- the page ----------------------------------------------------------------------------------


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _share(row: tables.Row, name: str) -> str:
    return (
        f"{100 * row[name]:.1f} ({100 * row[f'{name}_low']:.1f} to {100 * row[f'{name}_high']:.1f})"
    )


def _time(row: tables.Row) -> str:
    if math.isnan(row["time_to_goal_s"]):
        return "-"
    ends = f"({row['time_to_goal_low']:.2f} to {row['time_to_goal_high']:.2f})"
    return f"{row['time_to_goal_s']:.2f} {ends}"


def _rate(value: float) -> str:
    return f"{100 * value:.1f}"


def _beyond(row: tables.Row) -> str:
    if row["beyond_tolerance"] is None:
        return "-"
    promised = "promised" if row["promised"] else "not promised"
    return f"{100 * row['beyond_tolerance']:.1f} ({promised})"


def summary_table(rows: Sequence[tables.Row]) -> str:
    """Outcomes and cost of every method."""
    return markdown(
        ("method", "success, %", "collisions, %", "time to goal, s", "evaluations a call",
         "latency p50 / p99, ms", "misses, %", "holds, %"),
        (
            (
                METHODS[row["method"]].title,
                _share(row, "success"),
                _share(row, "collision"),
                _time(row),
                f"{row['evaluations_per_call']:.1f}",
                f"{1e3 * row['latency_p50_s']:.0f} / {1e3 * row['latency_p99_s']:.0f}",
                _rate(row["deadline_miss_rate"]),
                _rate(row["hold_rate"]),
            )
            for row in rows
        ),
    )  # fmt: skip


def escalation_table(rows: Sequence[tables.Row]) -> str:
    """What escalation did, and how far plans were from full compute."""
    return markdown(
        ("method", "escalated, % of calls", "resampled, %", "overridden, %",
         "random call beyond the tolerance, % of episodes"),
        (
            (
                METHODS[row["method"]].title,
                _rate(row["escalation_rate"]),
                _rate(row["resample_rate"]),
                _rate(row["override_rate"]),
                _beyond(row),
            )
            for row in rows
            if METHODS[row["method"]].program != "full"
        ),
    )  # fmt: skip


def comparison_table(pairs: Sequence[tables.Comparison]) -> str:
    """Paired tests."""
    return markdown(
        ("second against first", "success, %", "p (worse)", "collisions, %", "p (more)",
         "faster by, s", "p (time)"),
        (
            (
                f"{pair.second} against {pair.first}",
                f"{100 * pair.success_second:.1f} against {100 * pair.success_first:.1f}",
                f"{pair.success_p:.3g} ({pair.worse_p:.3g})",
                f"{100 * pair.collisions_second:.1f} against {100 * pair.collisions_first:.1f}",
                f"{pair.collisions_p:.3g} ({pair.more_collisions_p:.3g})",
                f"{pair.faster_s:.2f} ({pair.faster_low:.2f} to {pair.faster_high:.2f})",
                f"{pair.time_p:.2g}",
            )
            for pair in pairs
        ),
    )  # fmt: skip


def _fewer(programs: ClosedLoopPrograms) -> str:
    """What stands for fewer steps, in a sentence."""
    found = programs.fewer
    if found is None:
        return ""
    return (
        f"Fewer steps: {title({'name': found.name, 'tuned': found.tuned()})}, {found.evaluations} "
        f"evaluations, the best of the alternatives on {found.calls} tuning calls "
        f"({found.spacing}). "
    )


def _page(
    out: Path,
    programs: ClosedLoopPrograms,
    rows: Sequence[tables.Row],
    pairs: Sequence[tables.Comparison],
    trace: Trace,
    certificate: Certificate,
    command: str,
) -> str:
    platform = programs.platform
    needed = needs(platform, trace)
    machine = ", ".join(f"{key} {value}" for key, value in trace.machine.items())
    parts = [
        f"# Closed loop: {platform.name}",
        f"`{command}`. {rows[0]['episodes']} episodes of every method, the same starts, goals, "
        f"disturbances and noise. Planning every {platform.period:g} s. Simulation; latencies are "
        "those of single planning jobs on this machine, drawn from `latency.jsonl`.",
        f"Machine: {machine}.",
        summary_table(rows),
        "Intervals: 95% (Wilson; bootstrap for means, of the episodes that succeed). "
        f"{_fewer(programs)}Methods under a deadline hold when a plan takes longer than the "
        "period; Full without one flies the old plan on.",
        "## Escalation",
        escalation_table(rows),
        f"Certificate: {certificate.promise()} Contexts were met while few-step planning drove. "
        "The last column looks at one call of each episode, drawn at random, that the method "
        "itself flew; *promised* says that the risk is kept with 95% confidence by the program "
        "that flew, escalation, deadline and all.",
        f"Set aside for new samples: {needed.resampled:.3f} s; for full compute: "
        f"{needed.full:.3f} s (of {platform.period:g} s).",
        "## Paired tests",
        comparison_table(pairs),
        "Exact McNemar tests on the same episodes, two-sided (in brackets one-sided: the second is "
        "worse); Wilcoxon's signed-rank test of times where both succeed.",
        "## Pictures",
        "![outcomes](outcomes.png)",
    ]
    if (out / "calls.png").exists():
        parts += ["![calls](calls.png)", "![one flight](timeline.png)", "![flight](flight.gif)"]
    return "\n\n".join(parts) + "\n"
