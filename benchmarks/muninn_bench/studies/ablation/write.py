"""Write the study: one CSV per table, the plots, and a page that holds all of them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from muninn_bench.report.study_page import table_of, write_page
from muninn_bench.report.table import Table
from muninn_bench.studies.ablation import findings, plots, tables
from muninn_bench.studies.ablation.choices import NOT_MEASURED
from muninn_bench.studies.ablation.raw import Raw, settings_text
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE


def all_tables(raw: Raw) -> list[Table]:
    """Every table of the study; ``page.md`` says where it stands and how to read it."""
    return [
        *(table_of(make, raw) for make in (*tables.TABLES, *findings.TABLES)),
        *(
            table_of(tables.ii_risk, raw, value, name=f"ii_risk_{value:g}")
            for value in raw.info["risk_tolerances"]
        ),
    ]


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
    pictures = {draw.__name__: partial(draw, raw) for draw in plots.PICTURES}
    template = Path(__file__).with_name("page.md")
    return write_page(out, template, _words(raw), all_tables(raw), pictures)


def _words(raw: Raw) -> dict[str, Any]:
    """What the page names in braces: what was measured, on what, with which command."""

    def listed(values: Any) -> str:
        return ", ".join(f"{value:g}" if isinstance(value, float) else value for value in values)

    counts = sorted({(cell.stream, len(cell.deviation)) for cell in raw.cells})
    timed = "{hardware}, {threads} threads, {rounds} interleaved rounds of batch-1 calls"
    quick = " This is a quick run: small samples, not for quoting."
    return {
        **raw.info,
        "calls": settings_text(raw.info["calls"]),
        "counts": listed(f"{stream} {count}" for stream, count in counts),
        "cells": len(raw.cells),
        "devices": listed(sorted({cell.device for cell in raw.cells})),
        "tolerances": listed(raw.tolerances),
        "risks": listed(raw.risks),
        "timed": timed.format(**raw.timing) if raw.timing else NOT_MEASURED,
        "hardware": raw.timing.get("hardware"),
        "versions": settings_text(raw.info["versions"]),
        "quick": quick if raw.info["quick"] else "",
        "risk": RISK,
        "kept": 1.0 - RISK,
        "tolerance": TOLERANCE,
        "doubt": 1.0 - raw.confidence,
        "usual": f"the paper's method has {settings_text(raw.published)}",
    }
