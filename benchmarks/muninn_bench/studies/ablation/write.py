"""Write the study: one CSV per table, the plots, and a page that holds all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from muninn_bench.report.study_page import write_page
from muninn_bench.report.table import Table
from muninn_bench.studies.ablation import findings, promises, published
from muninn_bench.studies.ablation.analysis import NOT_MEASURED
from muninn_bench.studies.ablation.plots import PICTURES
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Raw

_WORDS = (
    "Deviation is the RMS distance per time step to full compute of the same call with the "
    "same noise, in the model's normalised coordinates. Shares carry 95% Wilson intervals, "
    "means 95% bootstrap intervals. Reuse is 1 - evaluations / T. Families are ordered from "
    "careful to aggressive; a certified program is the member that the confident certificate "
    "names on the calibrate calls, judged on the test calls. Success is the environment's "
    "signal when plans of the first test calls are followed; for that every second frame of "
    "them is kept, in half precision. Empty means not measured."
)


def all_tables(raw: Raw) -> list[Table]:
    """Every table of the study, in the order of the page."""
    makers: tuple[Callable[[Raw], Table], ...] = (
        promises.promise,
        promises.promises_kept,
        published.tolerances,
        *(partial(published.risks, tolerance=tolerance) for tolerance in raw.risk_tolerances),
        published.sensitivities,
        published.probes,
        published.forbidden,
        published.calibration,
        promises.our_parts,
        findings.quarter,
        findings.difficulty,
        findings.by_clearance,
        findings.by_evaluations,
        findings.coverage,
        findings.charged_steps,
        findings.cost_model,
        findings.probe_price,
        findings.frontier,
    )
    return [make(raw) for make in makers]


def write_results(folder: Path, out: Path) -> list[str]:
    """Write tables, plots and ``README.md`` of a raw folder into ``out``.

    Missing measurements leave rows or columns empty; nothing is measured here.

    Returns:
        Names of the files written.

    Raises:
        InputError: the folder holds no cells.
    """
    raw = Raw(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("families.json", "alternatives.json"):
        if (folder / name).is_file():
            shutil.copy(folder / name, out / name)
    heading = [f"# Ablation study: {raw.info['teacher']}", _facts(raw), _WORDS]
    if raw.info["quick"]:
        heading.append("This is a quick run: small samples, not for quoting.")
    return write_page(out, raw, heading, all_tables(raw), PICTURES)


def _facts(raw: Raw) -> str:
    """What was measured, on what, with which command."""
    info, timing = raw.info, raw.timing
    counts = {
        stream: sorted({len(cell.deviation) for cell in raw.cells if cell.key.stream == stream})
        for stream in (CALIBRATE, TEST)
    }
    facts: dict[str, Any] = {
        "Sampler steps T": raw.steps,
        "Trajectory": f"{info['horizon']} time steps, {info['width']} numbers each",
        "Calls": _join(info["calls"]),
        "Calls in the cells": _join({k: "/".join(map(str, v)) for k, v in counts.items() if v}),
        "Cells": len(raw.cells),
        "Measured on": ", ".join(sorted({cell.device for cell in raw.cells})),
        "Tolerances": ", ".join(f"{value:g}" for value in raw.tolerances),
        "Risks": ", ".join(f"{value:g}" for value in raw.risks),
        "Confidence": f"{raw.confidence:g}",
        "Seed": info["seed"],
        "Timed on": f"{timing['hardware']}, {timing['threads']} threads, {timing['rounds']} "
        "interleaved rounds of batch-1 calls"
        if timing
        else NOT_MEASURED,
        "Versions": _join(info["versions"]),
        "Command": f"`{info['command']}`",
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _join(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
