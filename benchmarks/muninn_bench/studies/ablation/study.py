"""The study of one teacher: everything is measured, resuming where it stopped, and written."""

from __future__ import annotations

import json
import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from muninn.certify.certificate import library_versions
from muninn.errors import CalibrationError, InputError
from muninn.parallel import Workers, workers_of
from muninn.progress import bars
from muninn_bench.measure.protocol import plain
from muninn_bench.networks.teacher import Teacher
from muninn_bench.report.study_page import table_of, write_page
from muninn_bench.report.table import Table
from muninn_bench.studies.ablation import findings, plots, tables
from muninn_bench.studies.ablation import settings as grid
from muninn_bench.studies.ablation.choices import NOT_MEASURED, certified_place, deviations
from muninn_bench.studies.ablation.programs import Programs
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, Raw, settings_text
from muninn_bench.studies.ablation.workbench import Member, Workbench, time_members, time_parts


def run_study(
    name: str,
    teacher: Teacher,
    folder: Path,
    sizes: grid.Sizes,
    *,
    device: str,
    command: str,
    tuned: Path | None = None,
    workers: Workers = None,
    progress: bool = True,
) -> None:
    """Measure every cell of a teacher that is not in the folder yet.

    Plans are followed only where gymnasium-robotics is installed, and times are taken on the CPU
    only, so a study measured on a GPU is completed by running it again without one. Families, plans
    of table (vii) and alternatives in the folder ``tuned`` are used as they are. Workers plan the
    calls of cells; tuning and timing stay here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = ("families.json", "variants.json", "alternatives.json")
    for file in files if sizes.every == 1 else files[:1]:  # a miniature has fewer plans
        if tuned is not None and (tuned / file).is_file():
            shutil.copy(tuned / file, folder)
    where = torch.device(device)
    with workers_of(workers, where) as crew, bars(progress) as task:
        bench = Workbench(teacher, sizes, where, folder, task, crew)
        _describe(bench, name, command)
        members = _measure_all(bench)
        if find_spec("gymnasium_robotics") is not None:
            bench.drive()
        if bench.device.type == "cpu":
            time_parts(bench)
            time_members(bench, members)


def full_member(bench: Workbench) -> Member:
    """Full compute."""
    return Member("full", 0, {}, plain(bench.planner))


def _measure_all(bench: Workbench) -> list[Member]:
    """Every cell; returns the programs, for timing."""
    full, programs, sizes = full_member(bench), Programs(bench), bench.sizes
    bench.measure(full, TEST)
    frontiers = grid.TOLERANCES if sizes.every == 1 else grid.TOLERANCES[-1:]
    kinds = [("static", tolerance) for tolerance in grid.TOLERANCES]
    kinds += [("frontier", tolerance) for tolerance in frontiers]
    members = [member for kind in kinds for member in programs.certified(*kind)]
    members += [*programs.baselines(), *programs.thresholds()]
    _measure(bench, "families and baselines", members, (CALIBRATE, TEST))
    paper = list(programs.paper())
    _measure(bench, "the published method", paper, (TEST,), sizes.paper)
    gates = []
    for tolerance in grid.ADAPTIVE_TOLERANCES:
        gates += _measure_gates(bench, [*programs.certified("adaptive", tolerance)], tolerance)
        gates += _measure_gates(bench, [*programs.probe_gates(tolerance)], tolerance)
    _measure(bench, "forecasts (vii)", [*programs.variants()], (CALIBRATE, TEST), sizes.variants)
    return [full, *members, *paper, *gates]


def _measure(
    bench: Workbench, what: str, members: list[Member], streams: tuple[str, ...], most: int = 0
) -> list[Cell]:
    advance = bench.task(what, len(members))
    cells = []
    for member in members:
        cells += [bench.measure(member, stream, most) for stream in streams]
        advance(1)
    return cells


def _measure_gates(bench: Workbench, family: list[Member], tolerance: float) -> list[Member]:
    """Gates decide per call, which a batch pays for: test the certified member only, in full."""
    cells = _measure(bench, f"gate {family[0].method}", family, (CALIBRATE,))
    try:
        place = certified_place(deviations(cells), tolerance, grid.RISK, grid.CONFIDENCE)
    except CalibrationError:  # too few calls for a certificate: a miniature
        place = len(cells) - 1
    chosen = [family[place]] if place >= 0 else []
    _measure(bench, f"test {family[0].method}", chosen, (TEST,))
    return chosen


def _describe(bench: Workbench, name: str, command: str) -> None:
    sizes, shape = bench.sizes, bench.planner.shape
    paper = grid.paper_settings(sizes.ghost, few=sizes.every > 1)
    document = {
        "teacher": name,
        "weights": bench.weights,
        "steps": len(bench.planner.sampler),
        "horizon": shape[0],
        "width": shape[-1],
        "calls": {k: getattr(sizes, k) for k in ("tune", "calibrate", "test", "ghost", "drive")},
        "seed": grid.SEED,
        "tolerances": grid.TOLERANCES,
        "risks": grid.RISKS,
        "risk_tolerances": sorted({own["tolerance"] for own in paper if own["risk"] != grid.RISK}),
        "confidence": grid.CONFIDENCE,
        "published": {k: v for k, v in paper[0].items() if k not in ("tolerance", "risk", "units")},
        "command": command,
        "versions": library_versions(),
        "quick": sizes != grid.FULL,
    }
    path = bench.folder / "study.json"
    before = json.loads(path.read_text()) if path.is_file() else document
    for what in ("weights", "seed"):
        if before.get(what) != document[what]:
            raise InputError(
                f"{bench.folder} was measured with other {what}; measure into an empty folder"
            )
    path.write_text(json.dumps(document, indent=1) + "\n")


# -- the page ------------------------------------------------------------------------------


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
    timed = "{hardware}, {rounds} interleaved rounds of batch-1 calls"
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
        "risk": grid.RISK,
        "kept": 1.0 - grid.RISK,
        "tolerance": grid.TOLERANCE,
        "doubt": 1.0 - raw.confidence,
        "usual": f"the paper's method has {settings_text(raw.published)}",
    }
