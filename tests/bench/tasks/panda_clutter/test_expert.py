"""The expert's paths, the data made of them, and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from muninn.errors import InputError
from muninn_bench.networks.runs import load_runs
from muninn_bench.tasks.panda_clutter import data, expert, robot
from muninn_bench.tasks.panda_clutter.arm import Arm
from muninn_bench.tasks.panda_clutter.data import BOXES, RECORDING, make_run, make_runs
from muninn_bench.tasks.panda_clutter.problem import Problem, judge
from muninn_bench.tasks.panda_clutter.world import ROOM, Clutter

pytest.importorskip("ompl")

REST = np.array([0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785])
ASIDE = REST + np.array([1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
EMPTY = np.zeros((0, 6))


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    try:
        robot.assets()
    except InputError as error:
        pytest.skip(str(error))


def test_expert_paths_are_free_smooth_and_evenly_spaced() -> None:
    for index, boxes in enumerate(BOXES.values()):
        run = make_run(0, index)
        assert len(run.problem.boxes) == boxes and run.path.shape == (expert.HORIZON, 7)
        found = judge(run.problem, run.path)
        assert found.success and found.clearance >= ROOM - 1e-3
        np.testing.assert_allclose(run.path[[0, -1]], run.problem[:2], atol=1e-9)
        # Half as far apart, checks find nothing either.
        assert Clutter(run.problem.boxes).free(run.path, step=0.005)
        steps = np.linalg.norm(np.diff(run.path, axis=0), axis=1)
        assert steps.max() < 1.02 * steps.mean()
        straight = np.linalg.norm(run.problem.goal - run.problem.start)
        assert straight < found.length < 3.0 * straight


def test_a_run_is_a_function_of_seed_and_index() -> None:
    (first,), (again,), (other,) = make_runs(1, 0), make_runs(1, 0), make_runs(2, 0)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_goal_out_of_reach_gives_no_path_after_so_many_checks() -> None:
    problem = Problem(REST, ASIDE, EMPTY)
    assert expert.find_path(problem, 0) is not None
    assert expert.search(problem, ROOM, 1, most=0) is None
    assert expert.find_path(problem, 0, most=0) is None
    # A goal so close to a box that nobody keeps ROOM there, but not in collision.
    hand = Arm().hand(torch.tensor(ASIDE).float()).double().numpy()
    box = np.array([[*hand, 0.04, 0.05, 0.06]])
    while Clutter(box).touches(ASIDE):
        box[0, 1] += 0.001
    assert Clutter(box).touches(ASIDE, ROOM / 2.0)
    assert expert.find_path(Problem(REST, ASIDE, box), 0) is None


def test_the_expert_refuses_collisions() -> None:
    hand = np.array([[0.3, 0.0, 0.5, 0.05, 0.05, 0.05]])
    with pytest.raises(InputError, match="the start is in collision"):
        expert.find_path(Problem(REST, ASIDE, hand), 0)


def test_problems_that_the_expert_gives_up_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def some(problem: Problem, seed: int) -> np.ndarray | None:
        asked.append(problem)
        return np.zeros((64, 7)) if len(asked) == 3 else None

    monkeypatch.setattr(data, "find_path", some)
    run = make_run(0, 0)
    assert run.redrawn == 2 and not np.array_equal(asked[0].start, asked[2].start)
    np.testing.assert_array_equal(run.problem.start, asked[2].start)
    monkeypatch.setattr(data, "find_path", lambda problem, seed: None)
    with pytest.raises(InputError, match="none of 20 problems with 6 boxes for run 4 of seed 0"):
        make_run(0, 4)


def test_runs_are_recorded_as_joints_alone(tmp_path: Path) -> None:
    RECORDING.generate(tmp_path / "runs.npz", 2, seed=0, workers=1)
    runs = load_runs(tmp_path / "runs.npz")
    assert runs.frames.shape == (2 * expert.HORIZON, 7)
    np.testing.assert_allclose(runs.frames[:64], make_runs(0, 0)[0], atol=1e-3)


def test_pictures_show_every_plan(tmp_path: Path) -> None:
    picture = pytest.importorskip("muninn_bench.tasks.panda_clutter.picture")
    problem = Problem(REST, ASIDE, np.array([[0.5, -0.3, 0.3, 0.05, 0.05, 0.05]]))
    plan = np.linspace(REST, ASIDE, 4)
    try:
        picture.draw_plans(problem, {"Full": plan, "Muninn": plan}, tmp_path / "plans.png")
    except InputError as error:
        assert "MUJOCO_GL=egl" in str(error)
        pytest.skip(str(error))
    pixels = np.asarray(Image.open(tmp_path / "plans.png").convert("RGB"))
    assert pixels.shape == (picture.HEIGHT, 2 * picture.WIDTH, 3)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 500
    picture.animate(problem, {"Full": plan, "Muninn": plan}, tmp_path / "plans.gif")
    assert Image.open(tmp_path / "plans.gif").n_frames >= 4


def test_a_machine_without_opengl_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = pytest.importorskip("mujoco")
    from muninn_bench.tasks.panda_clutter import picture

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no display")

    monkeypatch.setattr(mujoco, "Renderer", fails)
    with pytest.raises(InputError, match=r"cannot render here \(no display\).*MUJOCO_GL=egl"):
        picture._Studio()
