"""A result and a certificate as tables and sentences for a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from muninn.certificate import Certificate

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


def print_certificate(console: Console, certificate: Certificate) -> None:
    """Everything a certificate says, in order of what a person asks first."""
    console.print(f"[bold]Promise[/]  {certificate.promise()}")
    console.print(
        "[bold]Not promised[/]  What happens in the remaining calls, safety of any plan, or "
        "contexts unlike those calibrated."
    )
    facts = Table(show_header=False, box=None)
    identity, counts = certificate.identity, certificate.counts
    sampler, forecast = identity["sampler"], certificate.family.forecast
    rows = {
        "program": f"member {certificate.member} of the {certificate.family.name} family "
        f"(0 is full compute, {len(certificate.family) - 1} the most aggressive)",
        "plan": str(certificate.program.plan.to_json()),
        "forecast": f"{forecast.quantity}, order {forecast.order}, "
        f"look-back {'on' if forecast.look_back else 'off'}",
        "per-call bound": f"Dhat = max(m(A) + {certificate.bound.quantile:.4g}, 0), covers with "
        f"probability {1 - certificate.risk:g} on average over calls",
        "calibrated on": f"{counts['certify']} {certificate.unit}s to certify, {counts['bound']} "
        f"for the bound, {counts['tune']} to tune; seed {certificate.seed}, batch "
        f"{certificate.batch_size}",
        "model": f"{identity['model']['denoiser']}, {identity['model']['parameters']:,} numbers, "
        f"weights {identity['model']['weights'] or 'not found: cannot be checked'}",
        "guidance": str(identity["model"]["guidance"]),
        "sampler": ", ".join(f"{key} {value}" for key, value in sampler.items()),
        "runs on": f"{identity['device']}, {identity['dtype']}, shape {identity['shape']}, "
        f"engine {identity.get('engine', 'eager')}, arithmetic "
        + (str(certificate.arithmetic) if certificate.arithmetic else "torch's default"),
        "versions": ", ".join(f"{key} {value}" for key, value in certificate.versions.items()),
    }
    for name, value in rows.items():
        facts.add_row(f"[bold]{name}[/]", value)
    console.print(facts)
    scan = Table(title="Scan of the family on the certify split")
    for heading in ("member", "evaluations", "deviation p95", "violations", "accepted"):
        scan.add_column(heading, justify="right")
    for row in certificate.realised:
        scan.add_row(
            str(row["member"]),
            f"{row['evaluations_mean']:.1f}",
            f"{row['deviation_p95']:.4f}",
            f"{row['violations']} of {row['units']}",
            "yes" if row["accepted"] else "no (stopped)",
        )
    console.print(scan)
    console.print("[bold]Not checked[/] when this certificate is used:")
    for words in certificate.unchecked():
        console.print(f"- {words}", markup=False, highlight=False)
