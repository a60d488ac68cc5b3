"""A certificate in words and tables, for a person at a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muninn.certify.certificate import Certificate
from muninn.certify.risk import order_statistic


def print_certificate(console: Console, certificate: Certificate, unchecked: bool = True) -> None:
    """Everything a certificate says, in order of what a person asks first."""
    console.print(f"[bold]Promise[/]  {escape(certificate.promise())}")
    console.print(
        "[bold]Not promised[/]  What happens in the remaining calls, safety of any plan, or "
        "contexts unlike those calibrated."
    )
    facts = Table(show_header=False, box=None)
    identity, counts = certificate.identity, certificate.counts
    sampler = identity["sampler"]
    rows = {
        "program": f"number {certificate.member} of the programs that were tried, from careful (0, "
        f"full compute) to bold ({len(certificate.family) - 1})",
        "runs": str(certificate.program),
        "per-call bound": "none: an outcome is promised"
        if certificate.bound is None
        else f"with every plan (record.bound), holds for {1 - certificate.risk:.0%} of calls on "
        "average",
        "calibrated on": f"{counts['certify']} {certificate.unit}s to certify, {counts['bound']} "
        f"for the bound, {counts['tune']} to tune; seed {certificate.seed}, batch "
        f"{certificate.batch_size}",
        "model": f"{identity['model']['denoiser']}, {identity['model']['parameters']:,} parameters "
        f"and buffers, weights {identity['model']['weights'] or 'not found: cannot be checked'}",
        "guidance": str(identity["model"]["guidance"]),
        "sampler": _sampler(sampler),
        "runs on": f"{identity['device']}, {identity['dtype']}, shape {identity['shape']}, "
        f"engine {identity.get('engine', 'eager')}, arithmetic "
        + (str(certificate.arithmetic) if certificate.arithmetic else "torch's default"),
        "versions": ", ".join(f"{key} {value}" for key, value in certificate.versions.items()),
    }
    for name, value in rows.items():
        facts.add_row(f"[bold]{name}[/]", escape(value))
    console.print(facts)
    title = "Programs on the calls that certify, from careful to bold"
    if certificate.outcome is None:
        allowed = order_statistic(counts["certify"], certificate.risk, certificate.confidence) - 1
        title += f": at most {allowed} of {counts['certify']} may violate"
    scan = Table(title=title)
    what = "deviation p95" if certificate.outcome is None else "mean score"
    for heading in ("program", "evaluations", what, "violations", "accepted"):
        scan.add_column(heading, justify="right")
    for row in certificate.realised:
        scan.add_row(
            str(row["member"]),
            f"{row['evaluations_mean']:.1f}",
            f"{row.get('deviation_p95', row.get('score_mean')):.4f}",
            f"{row['violations']} of {row['units']}",
            "yes" if row["accepted"] else "no (stopped)",
        )
    console.print(scan)
    for words in _advice(certificate):
        console.print(words, highlight=False)
    if unchecked:
        console.print("[bold]Not checked[/] when this certificate is used:")
    for words in certificate.unchecked() if unchecked else ():
        console.print(f"- {words}", markup=False, highlight=False)


def _advice(certificate: Certificate) -> Iterator[str]:
    """What the scan suggests to whoever wants another promise."""
    if certificate.outcome is not None or not certificate.realised:
        return
    counts, last = certificate.counts, certificate.realised[-1]
    if not last["accepted"]:
        yield (
            f"The program after it, with {last['evaluations_mean']:.1f} evaluations, left the "
            f"tolerance in {last['violations']} of the {last['units']} calls that were looked at. "
            f"Calibrating on more than these {sum(counts.values())} calls may certify a cheaper "
            "program. Do not keep the best of several seeds: that voids the promise."
        )
    largest = max(row.get("deviation_max", math.inf) for row in certificate.realised)
    if certificate.tolerance is not None and largest < certificate.tolerance:
        yield (
            f"No program deviated by more than {largest:.3g} in any call: a tolerance between that "
            f"and {certificate.tolerance:g} promises more with the same evaluations. Is it in the "
            "unit of the metric?"
        )


def _sampler(sampler: dict[str, Any]) -> str:
    """The description of a sampler, its settings in words."""
    left = dict(sampler)
    name, steps, kind = left.pop("name"), left.pop("steps"), left.pop("kind")
    said = [f"{name}, {steps} steps of a network that predicts {kind}"]
    clip, keeps = left.pop("clip", None), left.pop("keep_epsilon", False)
    if clip is not None:
        follows = "keeps the network's" if keeps else "follows from the clipped"
        said.append(f"clean plans clipped at {clip:g} (noise estimate {follows})")
    return ", ".join([*said, *(f"{key.replace('_', ' ')} {value}" for key, value in left.items())])
