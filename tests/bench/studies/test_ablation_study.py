"""The measuring half of the study, end to end on an untrained network of a few weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn.parallel import Map
from muninn.programs import spacing
from muninn.progress import bars
from muninn_bench.networks.teacher import Teacher
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.studies.ablation import settings as grid
from muninn_bench.studies.ablation.programs import Programs
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Raw, load_cell, save_cell
from muninn_bench.studies.ablation.settings import Sizes
from muninn_bench.studies.ablation.study import full_member, run_study
from muninn_bench.studies.ablation.workbench import Member, Workbench

TINY = Sizes(4, 64, 6, 6, 60, 8, 0, 1, 64, (20, 8, 3), (12, 5), 1)


def _teacher(steps: int = 24) -> Teacher:
    torch.manual_seed(0)
    schedule = Schedule.cosine(steps)
    config = UnetConfig(widths=(8, 8), time_width=8, heads=1)
    network = TemporalUnet(config, schedule, 8).eval().requires_grad_(False)
    high = torch.tensor([4.8, 3.3, 4.0, 4.0, 0.5, 0.5])
    return Teacher(network, -high, high, 8, schedule, 0.03)


@contextmanager
def _small_grid() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spacing, "POWERS", {"t": (1.0, 1.5), "sigma": (7.0,), "angle": (1.0,)})
        patch.setattr(grid, "TOLERANCES", (0.02, 0.05))
        patch.setattr(grid, "FORBIDDEN", ((3, 3), (0, 3)))
        patch.setattr(grid, "RISK_TOLERANCES", (0.05,))
        patch.setattr(grid, "ADAPTIVE_TOLERANCES", (0.05,))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with _small_grid():
        out = tmp_path_factory.mktemp("study")
        run_study("tiny", _teacher(), out, TINY, device="cpu", command="test", progress=False)
        before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*")}
        run_study("tiny", _teacher(), out, TINY, device="cpu", command="test", progress=False)
        after = {path: path.stat().st_mtime_ns for path in out.glob("cells/*")}
        assert before == after  # a second run measures nothing
    return out


def test_workers_plan_what_this_process_would(folder: Path, tmp_path: Path) -> None:
    with _small_grid():
        run_study(
            "tiny", _teacher(), tmp_path, TINY, device="cpu", command="test", tuned=folder,
            workers=2, progress=False,
        )  # fmt: skip
    here, there = ({path.name: load_cell(path) for path in sorted((out / "cells").iterdir())}
                   for out in (folder, tmp_path))  # fmt: skip
    assert here.keys() == there.keys()
    for name, cell in there.items():
        assert np.array_equal(here[name].deviation, cell.deviation), name
        assert np.array_equal(here[name].evaluations, cell.evaluations), name


@pytest.mark.parametrize("name", ["unet", "transformer"])
def test_committed_families_are_used_as_they_are(name: str, tmp_path: Path) -> None:
    """Their members are loops, not tables; their cells keep the names they were measured under."""
    stored = Path(__file__).parents[3] / "results" / "ablation" / name / "families.json"
    shutil.copy(stored, tmp_path)
    with bars(False) as task:
        bench = Workbench(_teacher(100), TINY, torch.device("cpu"), tmp_path, task, Map())
    for key, family in json.loads(stored.read_text()).items():
        kind, _, tolerance = key.partition("-")
        members = list(Programs(bench).certified(kind, float(tolerance)))
        plans = family["plans"][1:]
        assert [member.settings["plan"] for member in members] == plans
        assert all(member.settings["forecast"] == family["forecast"] for member in members)


def test_every_method_is_measured_on_the_streams_it_needs(folder: Path) -> None:
    study = Raw(folder)
    methods = set(study.methods)
    assert {"full", "static-0.02", "static-0.05", "adaptive-0.05", "probegate-0.05"} <= methods
    assert {"frontier-0.02", "frontier-0.05"} <= methods
    assert {"fewsteps", "fixedskip", "taylor", "probethresh", "teacache", "paper"} <= methods
    assert len([name for name in methods if name.startswith("variant-")]) == 24
    for method in ("static-0.05", "fewsteps", "teacache"):
        orders = [cell.order for cell in study.family(method, TEST)]
        assert orders == [cell.order for cell in study.family(method, CALIBRATE)]
        assert all(len(cell.deviation) == 64 for cell in study.family(method, CALIBRATE))
    full = study.family("full", TEST)[0]
    assert not full.deviation.any()
    assert (full.evaluations == 24).all()


def test_cells_hold_what_the_programs_did(folder: Path) -> None:
    study = Raw(folder)
    for cell in study.family("fewsteps", TEST):
        assert (cell.evaluations == cell.settings["evaluations"]).all()
    for cell in study.family("paper", TEST):
        tolerance = cell.settings["tolerance"]
        assert (cell.estimate <= tolerance * 1.001).all()
        assert cell.evaluated.sum() == pytest.approx(cell.evaluations.mean(), rel=1e-4)
        assert cell.charged.sum() == pytest.approx(cell.estimate.mean(), rel=1e-3, abs=1e-7)
        assert cell.settings["void"]  # 8 ghost calls cannot support any step risk here
    deviations = [cell.deviation.mean() for cell in study.family("fewsteps", TEST)]
    assert deviations[-1] > deviations[0]  # fewer steps, further from full compute


def test_another_teacher_or_family_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    other = _teacher()
    with torch.no_grad():
        next(other.network.parameters()).add_(1.0)
    with pytest.raises(InputError, match="other weights"):
        run_study("x", other, tmp_path / "copy", TINY, device="cpu", command="", progress=False)
    study = Raw(folder)
    (cell, *_) = study.family("static-0.05", TEST)
    retuned = replace(cell, settings={**cell.settings, "plan": "other"})
    save_cell(tmp_path / "copy" / "cells", retuned)
    with pytest.raises(InputError, match="two families"):
        Raw(tmp_path / "copy").family("static-0.05", TEST)


def test_a_cell_with_too_few_calls_is_measured_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(folder, out)
    with bars(False) as task:
        bench = Workbench(_teacher(), TINY, torch.device("cpu"), out, task, Map())
        few = Member("full", 0, {}, full_member(bench).run)
        assert len(bench.measure(few, TEST).deviation) == 6
        larger = Workbench(_teacher(), replace(TINY, test=8), torch.device("cpu"), out, task, Map())
        assert len(larger.measure(full_member(larger), TEST).deviation) == 8


def test_times_and_parts_are_there(folder: Path) -> None:
    study = Raw(folder)
    timed = {cell.method for cell in study.cells if len(cell.seconds) == 1}
    assert timed >= {"full", "paper", "fewsteps", "static-0.05"}
    assert not any(name.startswith("variant-") for name in timed)
    parts = json.loads((folder / "timing.json").read_text())
    assert parts["stem_ms"]["stem-1"] < parts["full_ms"]
    assert study.full is not None and study.full.clearance.shape == (6,)
