"""Run the study of one teacher: everything that is measured, in an order that can be resumed."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from muninn.certify.certificate import library_versions
from muninn.certify.risk import choose_member, units_needed
from muninn.errors import CalibrationError, InputError
from muninn.progress import bars
from muninn_bench.networks.teacher import Teacher
from muninn_bench.studies.ablation import settings as grid
from muninn_bench.studies.ablation.cells import CALIBRATE, TEST, Cell
from muninn_bench.studies.ablation.families import (
    Tuner,
    baseline_members,
    certified_members,
    full_member,
    variants,
)
from muninn_bench.studies.ablation.probed import ProbedPrograms
from muninn_bench.studies.ablation.settings import FULL, Sizes
from muninn_bench.studies.ablation.timing import time_members, time_parts
from muninn_bench.studies.ablation.workbench import Member, Workbench, drive


def run_study(
    name: str,
    teacher: Teacher,
    folder: Path,
    sizes: Sizes,
    *,
    device: str,
    command: str,
    families: Path | None = None,
    progress: bool = True,
) -> None:
    """Measure every cell of a teacher that is not in the folder yet.

    Plans are followed only where gymnasium-robotics is installed, and times are taken on the CPU
    only, so a study measured on a GPU is completed by running it again without one.

    Args:
        name: of the teacher.
        teacher: the network and its coordinates.
        folder: raw folder; what it holds already is kept.
        sizes: how much of everything.
        device: where to measure.
        command: to be noted beside the results.
        families: file of families tuned before, to be used as they are; the plans of table (vii)
            and the tuned alternatives may lie beside it.
        progress: show progress bars.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if families is not None:
        _reuse(families, folder)
        if sizes.every == 1:  # a miniature has fewer plans
            _reuse(families.with_name("variants.json"), folder)
            _reuse(families.with_name("alternatives.json"), folder)
    with bars(progress) as task:
        bench = Workbench(teacher, sizes, grid.SEED, torch.device(device), folder, task)
        _describe(bench, name, command)
        bench.write_clearance()
        members = _measure_all(bench)
        if find_spec("gymnasium_robotics") is not None:
            drive(bench)
        if bench.device.type == "cpu":
            time_parts(bench)
            time_members(bench, members)


def _reuse(tuned: Path, folder: Path) -> None:
    if tuned.is_file():
        shutil.copy(tuned, folder / tuned.name)


def _measure_all(bench: Workbench) -> list[Member]:
    """Every cell; returns the programs, for timing."""
    full = full_member(bench)
    bench.measure(full, TEST)
    tuner, probed = Tuner(bench), ProbedPrograms(bench)
    static = [certified_members(bench, tuner, "static", one) for one in grid.TOLERANCES]
    families = [*static, *baseline_members(bench, tuner), *probed.thresholds()]
    _measure(bench, "families and baselines", families, (CALIBRATE, TEST))
    paper = probed.paper_members()
    _measure(bench, "the published method", [paper], (TEST,), bench.sizes.paper)
    gates = []
    for tolerance in grid.ADAPTIVE_TOLERANCES:
        forecast = tuner.family("static", tolerance).forecast
        for family in (
            certified_members(bench, tuner, "adaptive", tolerance),
            probed.probe_gates(tolerance, forecast),
        ):
            gates += _measure_gates(bench, family, tolerance)
    some = bench.sizes.variants
    forecasts = variants(bench, tuner, grid.TOLERANCE)
    _measure(bench, "forecasts (vii)", forecasts, (CALIBRATE, TEST), some)
    return [full, *(member for family in families for member in family), *paper, *gates]


def _measure(
    bench: Workbench,
    what: str,
    families: list[list[Member]],
    streams: tuple[str, ...],
    most_calls: int | None = None,
) -> None:
    advance = bench.task(what, sum(len(family) for family in families))
    for member in (member for family in families for member in family):
        for stream in streams:
            bench.measure(member, stream, most_calls)
        advance(1)


def _measure_gates(bench: Workbench, family: list[Member], tolerance: float) -> list[Member]:
    """Gates decide per call, which a batch pays for: test the certified member only, in full."""
    advance = bench.task(f"gate {family[0].method}", len(family))
    cells = []
    for member in family:
        cells.append(bench.measure(member, CALIBRATE))
        advance(1)
    chosen = _certified(cells, tolerance)
    if chosen is None:
        return []
    bench.measure(family[chosen], TEST)
    return [family[chosen]]


def _certified(cells: list[Cell], tolerance: float) -> int | None:
    """Position of the certified member at the study's risk; None for full compute or too few."""
    excess = np.stack([cell.deviation / tolerance for cell in cells], axis=1)
    with_full = np.concatenate([np.zeros((len(excess), 1)), excess], axis=1)
    if len(excess) < units_needed(grid.RISK, grid.CONFIDENCE):
        return len(cells) - 1
    try:
        member = choose_member(with_full, grid.RISK, grid.CONFIDENCE)
    except CalibrationError:
        return None
    return member - 1 if member > 0 else None


def _describe(bench: Workbench, name: str, command: str) -> None:
    sizes = bench.sizes
    document = {
        "teacher": name,
        "weights": bench.weights,
        "steps": len(bench.planner.sampler),
        "horizon": bench.planner.shape[0],
        "width": bench.planner.shape[-1],
        "calls": {
            name: getattr(sizes, name) for name in ("tune", "calibrate", "test", "ghost", "drive")
        },
        "seed": bench.seed,
        "tolerances": list(grid.TOLERANCES),
        "risks": list(grid.RISKS),
        "confidence": grid.CONFIDENCE,
        "command": command,
        "versions": library_versions(),
        "quick": sizes != FULL,
    }
    path = bench.folder / "study.json"
    before = json.loads(path.read_text()) if path.is_file() else document
    for what in ("weights", "seed"):
        if before.get(what) != document[what]:
            raise InputError(
                f"{bench.folder} was measured with other {what}; measure into an empty folder"
            )
    path.write_text(json.dumps(document, indent=1) + "\n")
