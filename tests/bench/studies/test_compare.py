"""The comparison of any task: its schema, its arithmetic, its page, and that it resumes."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.measure.protocol import Outcomes
from muninn_bench.registry import find_task
from muninn_bench.report import page
from muninn_bench.report.page import render, write_report
from muninn_bench.report.rerun_file import RerunFile
from muninn_bench.report.tables import rows_of
from muninn_bench.studies.certified import Certified, Sizes
from muninn_bench.studies.compare import compare
from muninn_bench.studies.shown_calls import show_calls
from muninn_bench.task import Drawable, Stream, context_rows
from rerun_cases import read_rerun
from toy_task import STEPS, Toy

CALLS = 30
FAMILY = Family.of(
    Forecast("sample", 2),
    (Everywhere(), Static((0, 1, 2, 4, 7, 10, 14, 18, 21, 23)), Static((0, 12, 23))),
    "static",
)


def study(out: Path, calls: int = 1, **options: Any) -> Certified:
    sizes = Sizes(calibration=80, episodes=CALLS, timed=4, tuning=16)
    given = {"risk": 0.2, "family": FAMILY, "progress": False, **options}
    return Certified(Toy(calls), "only", out, sizes, **given)


@pytest.fixture(autouse=True)
def toy_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_task", lambda name: Toy())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "find_task", lambda name: Toy())
        out = tmp_path_factory.mktemp("run")
        made = study(out)
        return out, compare(made, made.certify(), "muninn-bench compare")


def test_methods_share_calls_and_alternatives_get_no_fewer_evaluations(
    run: tuple[Path, dict[str, Any]],
) -> None:
    _, result = run
    full, own, *others = result["methods"]
    assert [full["name"], own["name"]] == ["full", "muninn"]
    assert {other["name"] for other in others} == {"fewsteps", "dpmsolver", "unipc", "taylor"}
    assert full["evaluations_mean"] == STEPS and full["deviation_p95"] == 0.0
    for other in others:
        spent = math.ceil(own["evaluations_mean"])
        assert other["evaluations_mean"] == len(other["tuned"]["timesteps"]) == spent
        assert other["tuned"]["calls"] == 16
    for method in result["methods"]:
        assert method["task_success"] == pytest.approx(20 / 30)
        assert method["task_score"] == pytest.approx(3000 + 14.5)
        assert method["latency_ms_p99"] >= method["latency_ms_p50"] > 0.0
    assert result["single_calls"]["full_against_itself_max"] < 1e-5
    assert (result["task"], result["variant"], result["test_calls"]) == ("toy", "only", CALLS)


def test_the_folder_holds_rows_arrays_certificate_and_page(
    run: tuple[Path, dict[str, Any]],
) -> None:
    out, result = run
    assert json.loads((out / "result.json").read_text()) == result
    with (out / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [method["name"] for method in result["methods"]]
    assert {"task", "variant", "violation_low", "task_score_high"} <= set(rows[0])
    assert rows_of(result)[1]["violation_rate"] == float(rows[1]["violation_rate"])
    names = {"result.json", "rows.csv", "calls.safetensors", "report.html"}
    assert {path.name for path in out.iterdir()} == names | {"certificate.muninn.safetensors"}
    text = (out / "report.html").read_text()
    assert "<dt>Was it kept?</dt><dd>Yes: " in text and "Not promised." in text and "<svg" in text


def test_a_broken_promise_is_said_in_the_first_paragraph(
    run: tuple[Path, dict[str, Any]],
) -> None:
    import safetensors.numpy

    out, result = run
    arrays = safetensors.numpy.load_file(out / "calls.safetensors")
    broken = {**result, "violation_p_value": 1e-6}
    assert "<dd>NO, please report this: " in render(broken, arrays)


def test_a_second_run_takes_the_certificate_and_other_promises_are_refused(
    run: tuple[Path, dict[str, Any]],
) -> None:
    out, _ = run
    made = (out / "certificate.muninn.safetensors").stat().st_mtime_ns
    study(out).certify()
    assert (out / "certificate.muninn.safetensors").stat().st_mtime_ns == made
    with pytest.raises(InputError, match="delete it or choose another folder"):
        study(out, tolerance=0.5).certify()


def test_episodes_that_replan_are_driven_by_every_method_and_shadowed(tmp_path: Path) -> None:
    made = study(tmp_path, calls=3)
    certificate = made.certify()
    contexts = made.certify_contexts
    assert contexts.shape == (80, 1)  # one random call of each of Full's episodes
    assert set(np.unique(contexts // 100 % 10)) == {1.0, 2.0, 3.0}
    result = compare(made, certificate, "x")
    assert {method["name"] for method in result["methods"]} == {
        "full", "muninn", "fewsteps", "dpmsolver", "unipc",
    }  # fmt: skip
    loop = result["closed_loop"]
    assert (loop["episodes"], loop["calls"]) == (CALLS, 3 * CALLS)
    assert 0.0 <= loop["random_call_violation_rate"] <= loop["worst_call_violation_rate"] <= 1.0


def test_every_call_can_be_read_back_with_rerun(tmp_path: Path) -> None:
    import safetensors.numpy

    pytest.importorskip("rerun")
    made = study(tmp_path)
    compare(made, made.certify(), "x", rerun=True)
    found = read_rerun(tmp_path / "calls.rrd", "episode")
    arrays = safetensors.numpy.load_file(tmp_path / "calls.safetensors")
    for name in ("evaluations/full", "evaluations/muninn", "deviation/taylor", "bound/muninn"):
        figure, _, method = name.partition("/")
        expected = list(enumerate(arrays[f"{method}.{figure}"].tolist()))
        assert [(number, value) for number, (value,) in found[name]] == expected
    assert not any(name.startswith(("world", "clearance")) for name in found)  # it has no map


@pytest.mark.parametrize(("name", "edges"), [("discs", 1), ("maze2d", 40)])
def test_plans_are_shown_in_their_world(tmp_path: Path, name: str, edges: int) -> None:
    pytest.importorskip("rerun")
    task, variant = find_task(name), "diffuser"
    contexts = context_rows(task, variant, Stream.TEST, 2, 0)
    plans = np.random.default_rng(0).normal(size=(2, *task.planner(variant).shape))
    outcome = Outcomes("muninn", np.array([5, 6]), np.zeros(2), plans.astype(np.float32),
                       clearance=np.array([0.25, 0.5]))  # fmt: skip
    show_calls(RerunFile(tmp_path / "calls.rrd"), task, variant, [outcome], contexts)
    found = read_rerun(tmp_path / "calls.rrd", "episode")
    assert [value for _, (value,) in found["clearance/muninn"]] == [0.25, 0.5]
    assert isinstance(task, Drawable)
    where = task.positions(variant, torch.tensor(outcome.trajectories))
    for number, (path,) in found["world/muninn"]:
        assert number is not None
        np.testing.assert_allclose(path, where[int(number)], rtol=1e-4, atol=1e-5)
    ((_, outlines),) = found["world/obstacles"]
    assert len(outlines) >= edges


def test_a_missing_rerun_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path)
    certificate = made.certify()
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(InputError, match=r"muninn-bench\[viz\]"):
        compare(made, certificate, "x", rerun=True)
    assert not (tmp_path / "result.json").exists()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result\.json was not found; make it with"):
        write_report(tmp_path)
