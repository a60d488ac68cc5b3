"""A result as tables and sentences for a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from muninn_bench.report.style import TITLES
from muninn_bench.report.table import print_table

BROKEN = 0.01
"""A p-value below which a promise is reported as broken."""


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
    """The comparison, one row per method, and what to make of it."""
    rows = [cells(method) for method in result["methods"]]
    print_table(console, headings(result), rows)
    unit = result["tolerance_unit"]
    console.print(f"ms: the median call; slow ms: 99% are faster; 95% within, beyond: {unit}.")
    for name, sentence in answers(result).items():
        console.print(f"[bold]{name}[/] {sentence}", highlight=False)


def headings(result: dict[str, Any]) -> list[str]:
    """Of the columns that :func:`cells` fills."""
    beyond = f"beyond {result['tolerance']:g}"
    return ["method", "evaluations", "ms", "slow ms", "95% within", beyond, "success"]


def answers(result: dict[str, Any]) -> dict[str, str]:
    """What was promised, was it kept, how much faster, what would you pick instead."""
    by_name = {method["name"]: method for method in result["methods"]}
    ours, calls = by_name["muninn"], result["test_calls"]
    limit = f"{result['tolerance']:g} {result['tolerance_unit']}"
    certainty = "on average over calibrations"
    if result["confidence"] is not None:
        certainty = f"with {result['confidence']:.0%} confidence"
    kept = "Yes" if result["violation_p_value"] >= BROKEN else "NO, please report this"
    return {
        "What was promised?": f"At most {result['risk']:.0%} of new calls deviate from full "
        f"compute by more than {limit}, {certainty}.",
        "Was it kept?": f"{kept}: {ours['violation_rate']:.1%} of {calls} held-out calls did.",
        "How much faster?": f"{result['speedup']:.1f} times, with {ours['evaluations_mean']:.3g} "
        f"of {result['steps']} evaluations, at batch 1 on this machine's {result['device']}.",
        "What would you pick instead?": _instead(result, by_name),
    }


def _instead(result: dict[str, Any], by_name: dict[str, dict[str, Any]]) -> str:
    """The closest alternative with as many evaluations, and whether success asks for any of it."""
    others = [method for method in result["methods"] if method["tuned"] is not None]
    if not others:
        return "No alternative was run."
    best = min(others, key=lambda method: (method["violation_rate"], method["deviation_p95"]))
    said = f"{title(best)}, tuned, with as many evaluations: {best['violation_rate']:.1%} beyond"
    if best["violation_rate"] <= result["risk"]:
        said += ", as good; calibrate would certify it as well"
    few, full = by_name.get("fewsteps"), by_name["full"]
    if few is not None and few["task_success"] is not None:
        same = few["task_success"] >= full["task_success"] - 0.01
        said += (
            f". Fewer steps succeed in {few['task_success']:.0%}, full compute in "
            f"{full['task_success']:.0%}"
            + (": if success is all you need, take fewer steps" if same else "")
        )
    return said + "."


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
