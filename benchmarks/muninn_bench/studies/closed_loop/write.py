"""Files of a study: every episode, every method, paired tests, pictures, and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from muninn.files import write_whole
from muninn_bench.report.table import markdown, print_table, write_csv
from muninn_bench.report.tables import title
from muninn_bench.studies.closed_loop import pictures, tables
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight, Recorder
from muninn_bench.studies.closed_loop.methods import METHODS, ClosedLoopPrograms, needs
from muninn_bench.studies.closed_loop.traces import Replayed, Trace

Columns = dict[str, Callable[[tables.Row], str]]


def write_results(
    out: Path,
    programs: ClosedLoopPrograms,
    flights: Sequence[Flight],
    trace: Trace,
    command: str,
) -> list[tables.Row]:
    """Write everything; returns the rows of the summary."""
    certificate = programs.certificate
    rows = tables.method_rows(flights, certificate)
    pairs = tables.compare_all(flights)
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
    title = f"{programs.platform.name}, {method.title}: {chosen.outcome}"
    pictures.draw_gif(out / "flight.gif", recorder, programs.certificate, title)


# -- the page ----------------------------------------------------------------------------------


def _show(pattern: str, scale: float, *names: str) -> Callable[[tables.Row], str]:
    """A cell: a pattern filled with columns of a row, times a scale; "-" where one is missing."""

    def cell(row: tables.Row) -> str:
        values = [row[name] for name in names]
        if any(value is None or value != value for value in values):
            return "-"
        return pattern.format(*(scale * value for value in values))

    return cell


def _beyond(row: tables.Row) -> str:
    promised = "promised" if row["promised"] else "not promised"
    return _show(f"{{:.1f}} ({promised})", 100, "beyond_tolerance")(row)


_SHARE = "{:.1f} ({:.1f} to {:.1f})"
_PAIR = "{:.1f} against {:.1f}"
_TEST = "{:.3g} ({:.3g})"
_TIME = "{:.2f} ({:.2f} to {:.2f})"
_SUMMARY: Columns = {
    "method": lambda row: METHODS[row["method"]].title,
    "success, %": _show(_SHARE, 100, "success", "success_low", "success_high"),
    "collisions, %": _show(_SHARE, 100, "collision", "collision_low", "collision_high"),
    "time to goal, s": _show(_TIME, 1, "time_to_goal_s", "time_to_goal_low", "time_to_goal_high"),
    "evaluations a call": _show("{:.1f}", 1, "evaluations_per_call"),
    "latency p50 / p99, ms": _show("{:.0f} / {:.0f}", 1e3, "latency_p50_s", "latency_p99_s"),
    "misses, %": _show("{:.1f}", 100, "deadline_miss_rate"),
    "holds, %": _show("{:.1f}", 100, "hold_rate"),
}
_ESCALATION: Columns = {
    "method": _SUMMARY["method"],
    "escalated, % of calls": _show("{:.1f}", 100, "escalation_rate"),
    "resampled, %": _show("{:.1f}", 100, "resample_rate"),
    "overridden, %": _show("{:.1f}", 100, "override_rate"),
    "random call beyond the tolerance, % of episodes": _beyond,
}
_PAIRED: Columns = {
    "second against first": lambda row: f"{row['second']} against {row['first']}",
    "success, %": _show(_PAIR, 100, "success_second", "success_first"),
    "p (worse)": _show(_TEST, 1, "success_p", "worse_p"),
    "collisions, %": _show(_PAIR, 100, "collisions_second", "collisions_first"),
    "p (more)": _show(_TEST, 1, "collisions_p", "more_collisions_p"),
    "faster by, s": _show(_TIME, 1, "faster_s", "faster_low", "faster_high"),
    "p (time)": _show("{:.2g}", 1, "time_p"),
}


def _table(columns: Columns, rows: Sequence[tables.Row]) -> str:
    return markdown(list(columns), [[cell(row) for cell in columns.values()] for row in rows])


_TERMINAL: Columns = {
    "method": lambda row: str(row["method"]),
    "success": _show("{:.1f}%", 100, "success"),
    "collided": _show("{:.1f}%", 100, "collision"),
    "goal s": _show("{:.2f}", 1, "time_to_goal_s"),
    "NFE": _show("{:.1f}", 1, "evaluations_per_call"),
    "p50/p99 ms": _show("{:.0f}/{:.0f}", 1e3, "latency_p50_s", "latency_p99_s"),
    "held": _show("{:.1f}%", 100, "hold_rate"),
    "escalated": _show("{:.1f}%", 100, "escalation_rate"),
}


def print_rows(console: Console, rows: Sequence[tables.Row]) -> None:
    """The summary for a person at a terminal of 80 columns."""
    cells = [[cell(row) for cell in _TERMINAL.values()] for row in rows]
    print_table(console, list(_TERMINAL), cells)


def _fewer(programs: ClosedLoopPrograms) -> str:
    """The alternative that stands for fewer steps, in a sentence."""
    found = programs.fewer
    if found is None:
        return ""
    name = title({"name": found.name, "tuned": found.tuned()})
    return (
        f"Fewer steps: {name} ({found.table}), the best of the "
        f"alternatives on {found.calls} tuning calls. "
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
    cheap = [row for row in rows if METHODS[row["method"]].program != "full"]
    parts = [
        f"# Closed loop: {platform.name}",
        f"`{command}`. {rows[0]['episodes']} episodes of every method, the same starts, goals, "
        f"disturbances and noise. Planning every {platform.period:g} s. Simulation; latencies are "
        "those of single planning jobs on this machine, drawn from `latency.jsonl`.",
        f"Machine: {machine}.",
        _table(_SUMMARY, rows),
        "Intervals: 95% (Wilson; bootstrap for means, of the episodes that succeed). "
        f"{_fewer(programs)}Methods under a deadline hold when a plan takes longer than the "
        "period; Full without one flies the old plan on.",
        "## Escalation",
        _table(_ESCALATION, cheap),
        f"Certificate: {programs.certificate.promise()} Contexts were met while few-step planning "
        "drove. The last column looks at one call of each episode, drawn at random, that the "
        "method itself flew; *promised* says that the risk is kept with 95% confidence by the "
        "program that flew, escalation, deadline and all.",
        f"Set aside for new samples: {needed.resampled:.3f} s; for full compute: "
        f"{needed.full:.3f} s (of {platform.period:g} s).",
        "## Paired tests",
        _table(_PAIRED, pairs),
        "Exact McNemar tests on the same episodes, two-sided (in brackets one-sided: the second is "
        "worse); Wilcoxon's signed-rank test of times where both succeed.",
        "## Pictures",
        *(f"![{words}]({file})" for words, file in drawn.items()),
    ]
    return "\n\n".join(parts) + "\n"
