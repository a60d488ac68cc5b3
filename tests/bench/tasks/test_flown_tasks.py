"""The three robots as tasks: episodes of their streams, results, tolerances, what is missing."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
import torch

from few_step_cases import few_steps
from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn_bench.platform import SCOUTED, STUDIED, Platform
from muninn_bench.registry import find_task
from muninn_bench.studies.closed_loop.command import Robot
from muninn_bench.task import Drawable, Stream, Task, Timed, context_rows
from muninn_bench.tasks.flown import FIRST, FlownEpisode
from muninn_bench.tasks.maze2d.maze import sample_problems
from muninn_bench.tasks.maze2d.planner import bundled_teacher, maze_contexts

ROBOTS = ("maze2d", "crazyflie", "asv")
FLOWN = ("crazyflie", "asv")
EXTRAS = {"maze2d": "gymnasium_robotics", "crazyflie": "mujoco", "asv": "osqp"}


def task(name: str) -> Task:
    pytest.importorskip(EXTRAS[name])
    return find_task(name)


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_states_its_own_tolerance_in_metres(name: str) -> None:
    found = task(name)
    assert isinstance(found, Timed)
    platform: Platform = found.platform(found.variants[0])
    assert platform.tolerance == {"maze2d": 0.05, "crazyflie": 0.05, "asv": 0.5}[name]
    assert platform.name == name
    assert platform is not found.platform(found.variants[0])  # a study changes its own


@pytest.mark.parametrize("name", FLOWN)
def test_streams_begin_at_the_seeds_of_the_closed_loop(name: str) -> None:
    found = task(name)
    assert isinstance(found, Timed)
    platform = found.platform("diffuser")
    for stream, first in ((Stream.CERTIFY, SCOUTED), (Stream.TEST, STUDIED)):
        contexts = context_rows(found, "diffuser", stream, 2, seed=0)
        by_hand = torch.cat([platform.begin(first + number).context() for number in range(2)])
        assert torch.equal(contexts, by_hand)
    firsts = sorted(FIRST.values())
    assert len(set(FIRST)) == len(Stream) and min(np.diff(firsts)) >= 1_000_000
    other = found.begin("diffuser", Stream.TEST, 0, seed=1)
    assert not torch.equal(other.context(), found.begin("diffuser", Stream.TEST, 0).context())
    with pytest.raises(InputError, match="episodes 0 to 999999"):
        found.begin("diffuser", Stream.TEST, 1_000_000)


def test_an_episode_follows_screened_plans_for_a_period_and_has_a_result() -> None:
    found = task("crazyflie")
    assert isinstance(found, Timed)
    platform = found.platform("diffuser")
    episode, robot = FlownEpisode(platform, STUDIED), platform.begin(STUDIED)
    planner = few_steps(platform.planner, 3)
    for call in range(3):
        plan = planner.sample(episode.context(), noise=planner.draw_noise(seeds=[call]))[0]
        plan = torch.full_like(plan, float("nan")) if call == 1 else plan
        episode.follow(plan)
        if call == 1:
            robot.hold()  # what fails the screen is not flown
        else:
            robot.follow(plan, robot.time)
        robot.advance(platform.period)
        assert episode.time == pytest.approx(0.1 * (call + 1))
        assert torch.equal(episode.context(), robot.context())
    assert not episode.done
    result = episode.result()
    assert result.success is False
    assert result.figures == {"time_s": robot.time, "clearance_m": robot.smallest_clearance}


@pytest.mark.parametrize("name", FLOWN)
def test_the_metric_is_in_metres(name: str) -> None:
    found = task(name)
    metric, planner = found.metric("diffuser"), found.planner("diffuser")
    assert callable(metric) and metric.__qualname__ == "largest_distance_m"
    plan = torch.zeros(1, *planner.shape)
    moved = plan.clone()
    moved[0, 3, 0] += 0.1
    assert isinstance(found, Timed)
    path = found.platform("diffuser").path
    wanted = np.linalg.norm(path(moved[0]) - path(plan[0]), axis=1).max()
    assert float(metric(plan, moved)[0]) == pytest.approx(wanted) and wanted > 0.1


@pytest.mark.parametrize("variant", ["diffuser", "transformer"])
def test_maze_problems_are_those_of_the_committed_demo(variant: str) -> None:
    found = task("maze2d")
    teacher = bundled_teacher({"diffuser": "maze2d", "transformer": "maze2d-transformer"}[variant])
    for stream in (Stream.TUNE, Stream.CERTIFY, Stream.TEST):
        problems = sample_problems(4, seed=call_seed(7, int(stream)) % 2**31)
        contexts = context_rows(found, variant, stream, 4, seed=7)
        assert torch.equal(contexts, maze_contexts(teacher, problems))


def test_a_maze_plan_is_driven_once_and_drawn() -> None:
    found = task("maze2d")
    assert isinstance(found, Drawable)
    planner = few_steps(found.planner("diffuser"), 6)
    episode = found.begin("diffuser", Stream.TEST, 0, seed=7)
    plans = planner.sample(episode.context(), noise=planner.draw_noise(seeds=[0]))
    assert (episode.done, episode.time) == (False, 0.0)
    episode.follow(plans[0])
    assert episode.done and 0.0 < episode.time <= 8.0
    assert episode.result().success is True
    teacher = bundled_teacher()
    positions = found.positions("diffuser", plans)
    np.testing.assert_allclose(positions, teacher.unnormalise(plans)[..., :2].numpy(), atol=1e-6)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axis = pyplot.subplots()
    found.draw(axis, "diffuser", episode.context())
    start, goal = (line.get_xydata()[0] for line in axis.lines)
    np.testing.assert_allclose([start, goal], positions[0, [0, -1]], atol=1e-5)
    assert len(axis.images) == 1
    pyplot.close(figure)


def test_a_robot_is_built_by_name_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium_robotics")
    assert Robot("maze2d")().name == "maze2d"
    assert Robot("maze2d", "transformer")().name == "maze2d-transformer"
    with pytest.raises(InputError, match="no variant 'fast'; choose from diffuser"):
        Robot("crazyflie", "fast")()
    real_import = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name == "osqp":
            raise ImportError(name)
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"OSQP: pip install 'muninn-bench\[fly\]'"):
        Robot("asv")()
