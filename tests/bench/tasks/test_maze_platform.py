"""Maze2D as a platform: exact clearances, plans that are tracked, outcomes, and its pictures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from maze_cases import inside_walls
from muninn_bench.tasks.maze2d.clearance import wall_distance
from muninn_bench.tasks.maze2d.controller import TIME_STEP, tracking_action
from muninn_bench.tasks.maze2d.flight import (
    GOAL_RADIUS,
    TIME_LIMIT,
    MazeEpisode,
    MazePlatform,
    wall_clearance,
)
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS, EXTENT, WALLS

pytest.importorskip("gymnasium_robotics")
EAST, NORTH = np.array([1.0, 0.0]), np.array([0.0, 1.0])


@cache
def platform() -> MazePlatform:
    return MazePlatform()


@cache
def quiet() -> MazePlatform:
    return replace(platform(), gust=0.0, noise=(0.0, 0.0))


def _plan_through(positions: np.ndarray) -> torch.Tensor:
    """A plan of the teacher's horizon through positions at rest, normalised."""
    teacher = platform().teacher
    frames = np.zeros((teacher.horizon, 6))
    frames[:, :2] = positions
    return teacher.normalise(torch.tensor(frames, dtype=torch.float32))


def _position(episode: MazeEpisode) -> np.ndarray:
    return episode.snapshot().position


def _free_side(start: np.ndarray) -> np.ndarray:
    """A direction in which there is 0.3 m of room."""
    return next(s for s in (EAST, -EAST, NORTH, -NORTH) if wall_clearance(start + 0.3 * s) > 0.0)


def test_clearance_is_the_distance_to_the_nearest_wall() -> None:
    generator = np.random.default_rng(0)
    points = generator.uniform((EXTENT[0], EXTENT[2]), (EXTENT[1], EXTENT[3]), (300, 2))
    found = np.array([wall_clearance(point) for point in points])
    wanted = wall_distance(torch.tensor(points)).numpy() - BALL_RADIUS
    np.testing.assert_allclose(np.minimum(found, 1.0 - BALL_RADIUS), wanted, atol=1e-12)


def test_episodes_are_functions_of_their_seed() -> None:
    first, again, other = (platform().begin(seed) for seed in (3, 3, 4))
    assert np.array_equal(first.goal, again.goal)
    assert torch.equal(first.context(), again.context())
    for episode in (first, again):
        episode.advance(0.5)
    assert np.array_equal(_position(first), _position(again))
    assert not np.array_equal(first.goal, other.goal)


def test_the_planner_is_told_a_noisy_state_and_the_goal() -> None:
    told = quiet().begin(3)
    context = platform().teacher.unnormalise(told.context())[0].double().numpy()
    np.testing.assert_allclose(context[0, :2], _position(told), atol=1e-6)
    np.testing.assert_allclose(context[1], [*told.goal, 0.0, 0.0], atol=1e-6)
    noise = []
    for seed in range(400):
        noisy = platform().begin(seed)
        sensed = platform().teacher.unnormalise(noisy.context())[0, 0].double().numpy()
        noise.append(sensed - [*_position(noisy), 0.0, 0.0])
    assert np.std(noise, axis=0) == pytest.approx([0.01, 0.01, 0.05, 0.05], rel=0.2)


def test_time_advances_as_asked_in_whole_steps() -> None:
    episode = quiet().begin(1)
    episode.advance(0.013)
    assert episode.time == pytest.approx(0.013)
    episode.advance(0.005)
    assert episode.time == pytest.approx(0.018)
    whole = quiet().begin(1)
    whole.advance(0.5)
    parts = quiet().begin(1)
    for _ in range(50):
        parts.advance(0.01)
    assert np.array_equal(_position(whole), _position(parts))


def test_a_hold_stays_and_ends_by_the_time_limit() -> None:
    episode = quiet().begin(1)
    start = _position(episode)
    episode.advance(TIME_LIMIT + 1.0)
    assert episode.outcome == "timeout"
    assert episode.time == pytest.approx(TIME_LIMIT)
    np.testing.assert_allclose(_position(episode), start, atol=1e-6)


def test_a_hold_that_goes_on_does_not_drift() -> None:
    once, again = (platform().begin(5) for _ in range(2))
    for _ in range(6):
        again.hold()  # pushed away by gusts, it still comes back to where it was
        once.advance(0.5)
        again.advance(0.5)
    assert np.array_equal(_position(once), _position(again))


def test_a_plan_is_joined_where_it_would_be_by_now() -> None:
    robot = quiet()
    start = _position(robot.begin(1))
    step = 0.001 * _free_side(start)
    # 1 mm a frame of 0.03 s: slow enough to be tracked closely.
    plan = _plan_through(start + step * np.arange(robot.teacher.horizon)[:, None])
    for age in (0.0, 0.6):
        episode = robot.begin(1)
        episode.advance(age)
        episode.follow(plan, taken=0.0)
        episode.advance(1.5 - age)
        assert episode.outcome is None
        due = start + step * 1.5 / robot.teacher.frame_seconds
        np.testing.assert_allclose(_position(episode), due, atol=0.01)


def test_damping_is_applied_before_saturation() -> None:
    episode = quiet().begin(1)
    start = _position(episode)
    horizon = platform().teacher.horizon
    near = _plan_through(np.broadcast_to(start + 0.1 * EAST, (horizon, 2)))
    far = _plan_through(np.broadcast_to(start + 3.0 * EAST, (horizon, 2)))
    episode.follow(near, taken=0.0)
    nominal = episode._action()[0]
    wanted = tracking_action(start, np.zeros(2), start + 0.1 * EAST, np.zeros(2))
    assert nominal == pytest.approx(wanted[0], abs=1e-4)
    assert 0.0 < nominal < 1.0
    episode.follow(near, taken=0.0, factor=0.5)
    assert episode._action()[0] == pytest.approx(0.5 * nominal)
    episode.follow(far, taken=0.0, factor=0.5)
    assert episode._action()[0] == 1.0  # still beyond what the actuator can


def test_driving_into_a_wall_is_a_collision_and_reaching_the_goal_a_success() -> None:
    robot = quiet()
    episode = robot.begin(1)
    outside = np.broadcast_to([EXTENT[0] - 1.0, 0.0], (robot.teacher.horizon, 2))
    episode.follow(_plan_through(outside), taken=0.0)
    episode.advance(TIME_LIMIT)
    assert episode.outcome == "collision"
    assert episode.smallest_clearance < 0.0
    assert 0.0 < episode.time < TIME_LIMIT
    # The goal is moved into reach: the plan leads to it, and the episode ends on its rim.
    episode = robot.begin(1)
    start = _position(episode)
    side = 0.3 * _free_side(start)
    episode.goal = start + side * (GOAL_RADIUS + 0.2) / 0.3
    episode.follow(_plan_through(np.broadcast_to(start + side, (robot.teacher.horizon, 2))), 0.0)
    episode.advance(2.0)
    assert episode.outcome == "success"
    assert episode.snapshot().to_goal <= GOAL_RADIUS


def test_the_screen_rejects_plans_that_touch_walls() -> None:
    robot = platform()
    start = _position(robot.begin(1))
    stay = np.broadcast_to(start, (robot.teacher.horizon, 2))
    assert robot.screen(_plan_through(stay), None)
    line = np.linspace(start, [EXTENT[0], EXTENT[3]], robot.teacher.horizon)
    assert not robot.screen(_plan_through(line), None)
    np.testing.assert_allclose(robot.path(_plan_through(line)), line, atol=1e-5)


def test_few_steps_of_the_real_planner_reach_the_goal() -> None:
    from few_step_cases import few_steps

    robot = platform()
    planner = few_steps(robot.planner, 6)
    episode = robot.begin(2)
    for call in range(int(TIME_LIMIT / robot.period)):
        plan = planner.sample(episode.context(), noise=planner.draw_noise(seeds=[call]))[0]
        assert robot.screen(plan, None)
        episode.follow(plan, episode.time)
        episode.advance(robot.period)
        if episode.outcome is not None:
            break
    assert episode.outcome == "success"
    assert episode.time % TIME_STEP < 1e-9 or TIME_STEP - episode.time % TIME_STEP < 1e-9


def test_outlines_lie_between_walls_and_free_cells() -> None:
    lines = platform().outlines()
    for line in lines:
        middle = line.mean(axis=0)
        across = np.array([line[1, 1] - line[0, 1], line[1, 0] - line[0, 0]]) * 0.1
        sides = inside_walls(np.stack([middle + across, middle - across]))
        assert sides.sum() == 1
    free = np.argwhere(~WALLS)
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))
    neighbours = [WALLS[row + a, column + b] for row, column in free for a, b in steps]
    assert len(lines) == sum(neighbours)
