"""Scores of full compute: the row is that of the episodes, and guidance can be set."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import control_cases as cases
from muninn.errors import InputError
from muninn_bench.cli import app
from muninn_bench.measure.protocol import plain
from muninn_bench.measure.rollout import on_device, roll_out
from muninn_bench.registry import find_task
from muninn_bench.studies.score import guided_as, score_row
from muninn_bench.task import Stream
from muninn_bench.tasks import control
from muninn_bench.tasks.control import ControlTask, Scoring, Taught
from muninn_bench.tasks.kitchen.data import recording
from toy_task import Toy


def test_a_row_holds_means_and_intervals_of_the_episodes() -> None:
    row = score_row(Toy(calls=2), "only", Stream.TEST, 6)
    numbers = np.arange(3000, 3006)
    assert row["score"] == numbers.mean() and row["score_low"] < row["score"] < row["score_high"]
    assert row["success"] == np.mean(numbers % 3 != 0) and row["calls"] == 12
    with pytest.raises(InputError, match="at least two episodes, got 1"):
        score_row(Toy(), "only", Stream.TEST, 1)


def test_lanes_change_nothing() -> None:
    task = Toy(calls=3)
    run = plain(task.planner("only"))
    few = roll_out(task, "only", run, Stream.TUNE, 5, seed=1, lanes=2)
    many = roll_out(task, "only", run, Stream.TUNE, 5, seed=1, lanes=5)
    assert [drive.result for drive in few] == [drive.result for drive in many]
    for one, other in zip(few, many, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.contexts, other.contexts, strict=True))


def test_workers_drive_the_same_episodes() -> None:
    here, there = (
        score_row(Toy(calls=2), "only", Stream.TEST, 120, workers=each) for each in (None, 2)
    )
    assert here | {"seconds": 0} == there | {"seconds": 0}


@pytest.mark.parametrize("name", ["halfcheetah", "hopper", "walker2d", "kitchen"])
def test_guided_tasks_travel_to_workers(name: str) -> None:
    task = guided_as(find_task(name), [0.5])[0]
    there = pickle.loads(pickle.dumps(task))
    assert (there.name, there.variants) == (name, task.variants)


def test_full_compute_on_a_device_is_the_planner() -> None:
    planner = cases.policy("diffuser").planner
    contexts, noise = torch.rand(3, cases.OBSERVATION), planner.draw_noise(seeds=range(3))
    plans, record = on_device(plain(planner), planner.device)(contexts, noise)
    assert torch.equal(plans, planner.sample(contexts, noise=noise))
    assert record.evaluations.tolist() == [10] * 3


def test_a_scale_of_zero_is_the_planner_without_guidance(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = {
        name: Taught(recipe, cases.LESSONS[name], {}) for name, recipe in cases.RECIPES.items()
    }
    task = ControlTask("lines", object, Scoring(0, 1), 9, 0.1, recording, "nothing", taught)  # type: ignore[arg-type]
    monkeypatch.setattr(
        control, "_policy", lambda task, name: task.taught[name].recipe.policy(cases.agent(name))
    )
    (off, on) = guided_as(task, [0.0, 2.0])
    contexts = torch.rand(2, cases.OBSERVATION)
    x, t = torch.rand(2, 8, cases.OBSERVATION + cases.ACTION), torch.tensor([3, 4])
    alone = cases.agent("diffuser").networks["plan"](x, t)
    assert torch.equal(off.planner("diffuser").denoiser(x, t, contexts), alone)
    assert not torch.equal(on.planner("diffuser").denoiser(x, t, contexts), alone)
    same = task.planner("diffuser").denoiser(x, t, contexts)
    assert torch.equal(on.planner("diffuser").denoiser(x, t, contexts), same)
    x = x[..., : cases.OBSERVATION]
    unlabelled = cases.agent("decision-diffuser").networks["plan"](
        torch.cat([x, torch.zeros(2, 8, 2)], dim=-1), t
    )[..., : cases.OBSERVATION]
    found = off.planner("decision-diffuser").denoiser(x, t, contexts)
    assert torch.equal(found, unlabelled)


def test_a_task_without_guidance_takes_no_scale() -> None:
    with pytest.raises(InputError, match="toy have no guidance; leave out --scale"):
        guided_as(Toy(), [1.0])


def test_the_command_writes_a_table(tmp_path: Path) -> None:
    out = tmp_path / "score.csv"
    given = ["score", "--task", "discs", "--episodes", "2", "--out", str(out)]
    found = CliRunner().invoke(app, given, catch_exceptions=False)
    assert found.exit_code == 0
    assert out.read_text().startswith("task,variant,episodes,success")
