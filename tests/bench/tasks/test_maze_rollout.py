"""Closed loop in the real environment: good plans succeed, useless ones do not."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from muninn.errors import InputError
from muninn_bench.tasks.maze2d.controller import make_reference
from muninn_bench.tasks.maze2d.data import FRAME_STRIDE
from muninn_bench.tasks.maze2d.maze import (
    MazeProblem,
    cell_centre,
    cell_of,
    sample_problems,
    shortest_route,
)
from muninn_bench.tasks.maze2d.rollout import follow_all, reach

HORIZON = 256


def expert_plan(problem: MazeProblem) -> np.ndarray:
    route = shortest_route(
        cell_of(problem.start[:2]), cell_of(problem.goal), np.random.default_rng(0)
    )
    reference = make_reference(problem, route)
    frames = np.zeros((HORIZON, 6))
    steps = np.minimum(np.arange(HORIZON) * FRAME_STRIDE, len(reference.position) - 1)
    frames[:, :2], frames[:, 2:4] = reference.position[steps], reference.velocity[steps]
    return frames


def test_expert_plans_succeed_and_plans_that_stay_do_not() -> None:
    pytest.importorskip("gymnasium_robotics")
    problems = sample_problems(4, seed=5)
    plans = np.stack([expert_plan(problem) for problem in problems])
    assert follow_all(problems, plans).all()
    far = MazeProblem(np.array([*cell_centre((1, 1)), 0.0, 0.0]), cell_centre((7, 10)))
    staying = np.zeros((HORIZON, 6))
    staying[:, :2] = far.start[:2]
    assert reach(far, staying, seed=0)[0] is None


def test_a_plan_straight_into_a_wall_fails() -> None:
    # Head-on: the ball slides along walls, so an oblique straight line may well reach its goal.
    pytest.importorskip("gymnasium_robotics")
    problem = MazeProblem(np.array([*cell_centre((5, 4)), 0.0, 0.0]), cell_centre((5, 6)))
    straight = np.zeros((HORIZON, 6))
    straight[:, :2] = np.linspace(problem.start[:2], problem.goal, HORIZON)
    assert reach(problem, straight, seed=0)[0] is None


def test_wrong_plans_are_refused() -> None:
    problem = sample_problems(1, seed=0)[0]
    with pytest.raises(InputError, match=r"\(horizon, 6\)"):
        reach(problem, np.zeros((HORIZON, 4)), seed=0)
    with pytest.raises(InputError, match="finite"):
        reach(problem, np.full((HORIZON, 6), np.nan), seed=0)
    with pytest.raises(InputError, match="1 problems"):
        follow_all([problem], np.zeros((2, HORIZON, 6)))


def test_without_the_environment_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from muninn_bench.tasks.maze2d.world import MazeWorld

    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("gymnasium"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match="reinstall muninn-bench"):
        MazeWorld()
