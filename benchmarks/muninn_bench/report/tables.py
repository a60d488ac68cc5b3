"""A result as tables and sentences for a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

TITLES = {
    "full": "Full",
    "muninn": "Muninn",
    "fewsteps": "FewSteps",
    "dpmsolver": "DPM-Solver++",
    "unipc": "UniPC",
    "taylor": "Taylor series",
}


def title(method: dict[str, Any]) -> str:
    """A method's row in words, with the order that tuning chose where there was a choice."""
    name = TITLES.get(method["name"], str(method["name"]))
    tuned = method.get("tuned")
    if tuned is None or method["name"] == "fewsteps":  # those have one order
        return name
    return f"{name}, order {tuned['order']}"


def markdown_table(result: dict[str, Any]) -> str:
    """The comparison as README shows it; alternatives that were not tuned are left out."""
    tolerance = result["tolerance"]
    head = ("method", "evaluations", "p50 ms", "p99 ms", "deviation p95")
    columns = (*head, f"beyond {tolerance:g}", "reaches the goal")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for method in result["methods"]:
        name, own = method["name"], method["name"] == "muninn"
        if name not in ("full", "muninn") and method.get("tuned") is None:
            continue
        low, high = (100.0 * end for end in method["violation_ci95"])
        cells = [
            f"{title(method)} (your sampler)" if name == "full" else title(method),
            f"{method['evaluations_mean']:.3g}",
            f"{method['latency_ms_p50']:.0f}",
            f"{method['latency_ms_p99']:.0f}",
            "0" if name == "full" else f"{method['deviation_p95']:.4f}",
            "0%" if name == "full" else f"{method['violation_rate']:.1%}",
        ]
        cells = [f"**{cell}**" for cell in cells] if own else cells
        if name != "full":
            cells[-1] += f" ({low:.1f} to {high:.1f})"
        success = method["task_success"]
        cells.append("-" if success is None else f"{success:.0%}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def print_result(console: Console, result: dict[str, Any]) -> None:
    """The comparison, one row per method."""
    table = Table(title=f"{result['planner']}, {result['sampler'].upper()} {result['steps']} steps")
    headings = (
        "method",
        "evaluations",
        "p50 ms",
        "p99 ms",
        "deviation p95",
        "violations",
        "success",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method in result["methods"]:
        success = method["task_success"]
        low, high = method["violation_ci95"]
        table.add_row(
            title(method),
            f"{method['evaluations_mean']:.1f}",
            f"{method['latency_ms_p50']:.0f}",
            f"{method['latency_ms_p99']:.0f}",
            f"{method['deviation_p95']:.4f}",
            f"{method['violation_rate']:.1%} [{low:.1%}, {high:.1%}]",
            "-" if success is None else f"{success:.1%}",
        )
    console.print(table)
    console.print(
        f"speed-up {result['speedup']:.2f}x at batch 1 on {result['device']}; promised: at most "
        f"{result['risk']:.0%} of calls beyond {result['tolerance']:g} ({result['metric']})"
    )
