"""Files of a study: every episode, every method, paired tests, pictures, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from muninn.files import write_whole
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.report.table import cells, markdown, print_table, write_csv
from muninn_bench.report.tables import title
from muninn_bench.studies.closed_loop import pictures, tables
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight, Recorder
from muninn_bench.studies.closed_loop.methods import METHODS, ClosedLoopPrograms, needs
from muninn_bench.studies.closed_loop.traces import Replayed, Trace


def write_results(
    out: Path, programs: ClosedLoopPrograms, flights: Sequence[Flight], trace: Trace, command: str
) -> list[tables.Row]:
    """Write everything; returns the rows of the summary."""
    certificate = programs.certificate
    rows = tables.method_rows(flights, certificate)
    flown = {flight.method for flight in flights}
    pairs = [tables.compare(flights, *pair) for pair in tables.PAIRS if set(pair) <= flown]
    deployed = tables.of_method(flights, tables.DEPLOYED)
    files = {
        "episodes": list(map(tables.episode_row, flights)),
        "summary": rows,
        "comparisons": pairs,
        "calls": tables.call_rows(deployed, certificate),
    }
    for name, found in files.items():
        if found:
            write_csv(out / f"{name}.csv", found)
    pictures.plot_outcomes(out / "outcomes.png", rows)
    drawn = {"outcomes": "outcomes.png"}
    if deployed:
        pictures.plot_calls(out / "calls.png", deployed, certificate)
        _draw_flight(out, programs, deployed, trace)
        drawn |= {"calls": "calls.png", "one flight": "timeline.png", "flight": "flight.gif"}
    write_whole(out / "summary.md", _page(programs, rows, pairs, trace, command, drawn))
    return rows


def _draw_flight(
    out: Path, programs: ClosedLoopPrograms, flights: Sequence[Flight], trace: Trace
) -> None:
    """The flight of the deployed program that escaped most narrowly, flown again from its trace."""
    escaped = [flight for flight in flights if flight.outcome == "success"] or flights
    chosen = min(escaped, key=lambda flight: flight.smallest_clearance)
    recorder, method = Recorder(programs.platform), METHODS[tables.DEPLOYED]
    ticket, needed = Ticket(method, chosen.seed), needs(programs.platform, trace)
    fly_one(programs, ticket, Replayed(chosen.jobs), needed, watcher=recorder)
    pictures.plot_timeline(out / "timeline.png", recorder, programs.certificate)
    pictures.draw_gif(out / "flight.gif", [recorder], programs.certificate)


_INTERVAL = "{{{0}:.1f*100}} ({{{0}_low:.1f*100}} to {{{0}_high:.1f*100}})|"
_SUMMARY = (
    f"method=title|success, %={_INTERVAL.format('success')}"
    f"collisions, %={_INTERVAL.format('collision')}"
    "time to goal, s={time_to_goal_s:.2f} ({time_to_goal_low:.2f} to {time_to_goal_high:.2f})|"
    "evaluations a call=evaluations_per_call:.1f|"
    "latency p50 / p99, ms={latency_p50_s:.0f*1000} / {latency_p99_s:.0f*1000}|"
    "misses, %=deadline_miss_rate:.1f*100|holds, %=hold_rate:.1f*100"
)
_ESCALATION = (
    "method=title|escalated, % of calls=escalation_rate:.1f*100|"
    "resampled, %=resample_rate:.1f*100|overridden, %=override_rate:.1f*100|"
    "random call beyond the tolerance, % of episodes={beyond_tolerance:.1f*100} ({verdict})"
)
_PAIRED = (
    "second against first={second} against {first}|"
    "success, %={success_second:.1f*100} against {success_first:.1f*100}|"
    "p (worse)={success_p:.3g} ({worse_p:.3g})|"
    "collisions, %={collisions_second:.1f*100} against {collisions_first:.1f*100}|"
    "p (more)={collisions_p:.3g} ({more_collisions_p:.3g})|"
    "faster by, s={faster_s:.2f} ({faster_low:.2f} to {faster_high:.2f})|p (time)=time_p:.2g"
)
_TERMINAL = (
    "method=title|success={success:.0f*100}%|collided={collision:.0f*100}%|"
    "goal after={time_to_goal_s:.2f} s|evaluations=evaluations_per_call:.3g|"
    "plan takes={latency_p50_s:.0f*1000} ms"
)
_RARE = {"hold_rate": "held", "escalation_rate": "escalated"}


def print_rows(console: Console, rows: Sequence[tables.Row]) -> None:
    """The summary for a person at a terminal of 80 columns; what never happened has no column."""
    happened = (name for name in _RARE if any(row[name] for row in rows))
    rare = "".join(f"|{_RARE[name]}={{{name}:.0f*100}}%" for name in happened)
    named = [row | {"title": METHODS[row["method"]].title} for row in rows]
    print_table(console, *cells(_TERMINAL + rare, named))


def describe_fewer(found: Alternative) -> str:
    """A sentence: what stands for fewer steps."""
    if not found.calls:
        return (
            f"Fewer steps: {found.evaluations} of the sampler's own, evenly spread; "
            "`muninn-bench fly --study` tunes them."
        )
    name = title({"name": found.name, "tuned": found.tuned()})
    return (
        f"Fewer steps: {name} ({found.table}), the best of the alternatives on "
        f"{found.calls} tuning calls."
    )


def _page(
    programs: ClosedLoopPrograms,
    rows: Sequence[tables.Row],
    pairs: Sequence[tables.Row],
    trace: Trace,
    command: str,
    drawn: dict[str, str],
) -> str:
    platform = programs.platform
    needed = needs(platform, trace)
    machine = ", ".join(f"{key} {value}" for key, value in trace.machine.items())
    named = [
        row
        | {"title": METHODS[row["method"]].title}
        | {"verdict": "promised" if row["promised"] else "not promised"}
        for row in rows
    ]
    cheap = [row for row in named if METHODS[row["method"]].program != "full"]
    parts = [
        f"# Closed loop: {platform.name}",
        f"`{command}`. {rows[0]['episodes']} episodes of every method, the same starts, goals, "
        f"disturbances and noise. Planning every {platform.period:g} s. Simulation; latencies are "
        "those of single planning jobs on this machine, drawn from `latency.jsonl`.",
        f"Machine: {machine}.",
        markdown(*cells(_SUMMARY, named)),
        "Intervals: 95% (Wilson; bootstrap for means, of the episodes that succeed). "
        f"{describe_fewer(programs.fewer)} Methods under a deadline hold when a plan takes longer "
        "than the period; Full without one flies the old plan on.",
        "## Escalation",
        markdown(*cells(_ESCALATION, cheap)),
        f"Certificate: {programs.certificate.promise()} Contexts were met while few-step planning "
        "drove. The last column looks at one call of each episode, drawn at random, that the "
        "method itself flew; *promised* says that the risk is kept with 95% confidence by the "
        "program that flew, escalation, deadline and all.",
        f"Set aside for new samples: {needed.resampled:.3f} s; for full compute: "
        f"{needed.full:.3f} s (of {platform.period:g} s).",
        "## Paired tests",
        markdown(*cells(_PAIRED, pairs)),
        "Exact McNemar tests on the same episodes, two-sided (in brackets one-sided: the second is "
        "worse); Wilcoxon's signed-rank test of times where both succeed.",
        "## Pictures",
        *(f"![{words}]({file})" for words, file in drawn.items()),
    ]
    return "\n\n".join(parts) + "\n"
