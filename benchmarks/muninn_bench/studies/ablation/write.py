"""Write the study: one CSV per table, the plots, and a page that holds all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from muninn_bench.studies.ablation import plots
from muninn_bench.studies.ablation.analysis import NOT_MEASURED
from muninn_bench.studies.ablation.cells import CALIBRATE, TEST
from muninn_bench.studies.ablation.folder import Raw
from muninn_bench.studies.ablation.tables import Table
from muninn_bench.studies.ablation.tables_cost import table_frontier, table_quarter, tables_overhead
from muninn_bench.studies.ablation.tables_findings import tables_kf3, tables_kf4
from muninn_bench.studies.ablation.tables_ours import table_holm, table_promise, table_vii
from muninn_bench.studies.ablation.tables_paper import (
    table_i,
    table_iii,
    table_iv,
    table_v,
    table_vi,
    tables_ii,
)


def all_tables(raw: Raw) -> list[Table]:
    """Every table of the study, in the order of the page."""
    return [
        table_promise(raw),
        table_holm(raw),
        table_i(raw),
        *tables_ii(raw),
        table_iii(raw),
        table_iv(raw),
        table_v(raw),
        table_vi(raw),
        table_vii(raw),
        table_quarter(raw),
        *tables_kf3(raw),
        *tables_kf4(raw),
        *tables_overhead(raw),
        table_frontier(raw),
    ]


def write_results(raw: Path, out: Path) -> list[str]:
    """Write tables, plots and ``README.md`` of a raw folder into ``out``.

    Missing measurements leave rows or columns empty; nothing is measured here.

    Returns:
        Names of the files written.

    Raises:
        InputError: the folder holds no cells.
    """
    measured = Raw.load(raw)
    out.mkdir(parents=True, exist_ok=True)
    tables = all_tables(measured)
    for table in tables:
        (out / f"{table.name}.csv").write_text(table.csv())
    for name in ("families.json", "alternatives.json"):
        if (raw / name).is_file():
            shutil.copy(raw / name, out / name)
    drawn = plots.draw_all(measured, out)
    (out / "README.md").write_text(page(measured, tables, drawn))
    return [f"{table.name}.csv" for table in tables] + [*drawn, "README.md"]


def page(raw: Raw, tables: list[Table], drawn: dict[str, str]) -> str:
    """The page in markdown.

    Args:
        raw: what was measured.
        tables: in order.
        drawn: file name of each plot to its caption; one is shown below the table it names in
            :data:`muninn_bench.studies.ablation.plots.BELOW`.
    """
    parts = [f"# Ablation study: {raw.info.get('teacher', 'teacher not recorded')}", _sizes(raw)]
    for table in tables:
        parts += [f"## {table.title}", table.reading]
        body = table.markdown()
        if table.long and table.rows:
            count = f"{len(table.rows)} rows"
            body = f"<details><summary>{count}</summary>\n\n{body}\n\n</details>"
        parts.append(body)
        parts += table.notes
        if table.rows:
            parts.append(f"Numbers: [{table.name}.csv]({table.name}.csv)")
        for name, caption in drawn.items():
            if plots.BELOW[name] == table.name:
                parts += [f"![{caption}]({name})", f"*{caption}*"]
    return "\n\n".join(parts) + "\n"


def _sizes(raw: Raw) -> str:
    """What was measured, on what, with which command."""
    info = raw.info
    cells = raw.study.cells
    measured = {
        stream: sorted({len(cell.deviation) for cell in cells if cell.key.stream == stream})
        for stream in (CALIBRATE, TEST)
    }
    facts: list[tuple[str, Any]] = [
        ("Sampler steps T", raw.steps),
        ("Trajectory", _pair(info.get("horizon"), info.get("width"))),
        ("Calls", _join(info.get("calls", {}))),
        ("Calls in the cells", _join({k: "/".join(map(str, v)) for k, v in measured.items() if v})),
        ("Cells", len(cells)),
        ("Measured on", ", ".join(sorted({cell.device for cell in cells if cell.device}))),
        ("Tolerances", ", ".join(f"{value:g}" for value in raw.tolerances)),
        ("Risks", ", ".join(f"{value:g}" for value in raw.risks)),
        ("Confidence", f"{raw.confidence:g}"),
        ("Seed", info.get("seed")),
        ("Timed on", _timed(raw)),
        ("Versions", _join(info.get("versions", {}))),
        ("Command", f"`{info['command']}`" if info.get("command") else None),
    ]
    lines = [f"- {name}: {NOT_MEASURED if value in (None, '') else value}" for name, value in facts]
    words = (
        "Deviation is the RMS distance per time step to full compute of the same call with the "
        "same noise, in the model's normalised coordinates. Shares carry 95% Wilson intervals, "
        "means 95% bootstrap intervals. Reuse is 1 - evaluations / T. Families are ordered from "
        "careful to aggressive; a certified program is the member that the confident certificate "
        "names on the calibrate calls, judged on the test calls. Success is the environment's "
        "signal when plans of the first test calls are followed; for that every second frame of "
        "them is kept, in half precision. Empty means not measured."
    )
    quick = "\n\nThis is a quick run: small samples, not for quoting." if info.get("quick") else ""
    return "\n".join(lines) + "\n\n" + words + quick


def _join(values: Any) -> str:
    if not isinstance(values, dict):
        return str(values)
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _pair(horizon: Any, width: Any) -> str | None:
    return None if horizon is None else f"{horizon} time steps, {width} numbers each"


def _timed(raw: Raw) -> str | None:
    timing = raw.timing
    if not timing:
        return None
    return (
        f"{timing.get('hardware', 'hardware not recorded')}, {timing.get('threads', '?')} threads, "
        f"{timing.get('rounds', '?')} interleaved rounds of batch-1 calls"
    )
