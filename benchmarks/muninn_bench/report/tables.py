"""A result as tables and sentences for a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from muninn_bench.report.style import TITLES
from muninn_bench.report.table import print_table


def title(method: dict[str, Any]) -> str:
    """A method's row in words, with the order that tuning chose where there was a choice."""
    name = TITLES.get(method["name"], str(method["name"]))
    tuned = method.get("tuned")
    if tuned is None or method["name"] == "fewsteps":  # those have one order
        return name
    if "order" in tuned:  # a result from before alternatives were tables
        return f"{name}, order {tuned['order']}"
    return str(tuned["method"]).partition(",")[0]


def cells(method: dict[str, Any], intervals: bool = False) -> list[str]:
    """A method as every table shows it, under :func:`headings`."""
    rate, won, full = method["violation_rate"], method["task_success"], method["name"] == "full"
    shares = [f"{rate:.1%}", "-" if won is None else f"{won:.0%}"]
    if intervals:
        for place, name in enumerate(("violation_ci95", "task_success_ci95")):
            if method[name] is not None and not (full and place == 0):
                low, high = (100.0 * end for end in method[name])
                shares[place] += f" ({low:.1f} to {high:.1f})"
    return [
        title(method),
        f"{method['evaluations_mean']:.3g}",
        f"{method['latency_ms_p50']:.0f}",
        f"{method['latency_ms_p99']:.0f}",
        "0" if full else f"{method['deviation_p95']:.4f}",
        "0%" if full else shares[0],
        shares[1],
    ]


def print_result(console: Console, result: dict[str, Any]) -> None:
    """The comparison, one row per method."""
    name = f"{result['planner']}, {result['sampler'].upper()} {result['steps']} steps"
    rows = [cells(method) for method in result["methods"]]
    print_table(console, headings(result), rows, name)
    console.print(
        f"speed-up {result['speedup']:.2f}x at batch 1 on {result['device']}; promised: at most "
        f"{result['risk']:.0%} of calls beyond {result['tolerance']:g} ({result['metric']})"
    )


def headings(result: dict[str, Any]) -> list[str]:
    """Of the columns that :func:`cells` fills."""
    beyond = f"beyond {result['tolerance']:g}"
    return ["method", "evaluations", "p50 ms", "p99 ms", "deviation p95", beyond, "success"]


def rows_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a method, every study's schema: intervals become columns ``_low`` and ``_high``."""
    rows = []
    for method in result["methods"]:
        row: dict[str, Any] = {"task": result["task"], "variant": result["variant"]}
        for name, value in method.items():
            if name.endswith("_ci95"):
                low, high = (None, None) if value is None else value
                row |= {f"{name[:-5]}_low": low, f"{name[:-5]}_high": high}
            elif name != "tuned":
                row["method" if name == "name" else name] = value
        rows.append(row)
    return rows
