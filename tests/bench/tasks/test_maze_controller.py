"""The reference path: exact ends, rest at both, limits kept, away from walls."""

from __future__ import annotations

import numpy as np
import pytest

from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.controller import (
    ACTUATOR_GEAR,
    BALL_MASS,
    JOINT_DAMPING,
    TIME_STEP,
    TOP_SPEED,
    Reference,
    make_reference,
    smooth_noise,
    tracking_action,
)
from muninn_bench.tasks.maze2d.maze import cell_of, draw_problem, shortest_route


@pytest.fixture(params=range(8))
def problem_and_reference(request: pytest.FixtureRequest) -> tuple[np.ndarray, Reference]:
    generator = np.random.default_rng(request.param)
    problem = draw_problem(generator)
    route = shortest_route(cell_of(problem.start[:2]), cell_of(problem.goal), generator)
    ends = np.stack([problem.start[:2], problem.goal])
    return ends, make_reference(problem, route)


def test_reference_joins_start_and_goal_at_rest(
    problem_and_reference: tuple[np.ndarray, Reference],
) -> None:
    ends, reference = problem_and_reference
    np.testing.assert_allclose(reference.position[[0, -1]], ends, atol=1e-9)
    assert np.abs(reference.velocity[[0, -1]]).max() < 0.02


def test_reference_keeps_its_limits_and_its_distance(
    problem_and_reference: tuple[np.ndarray, Reference],
) -> None:
    _, reference = problem_and_reference
    assert np.linalg.norm(reference.velocity, axis=1).max() <= TOP_SPEED * 1.01
    assert np.abs(reference.acceleration).max() * BALL_MASS / ACTUATOR_GEAR < 0.6
    assert plan_is_free(reference.position, radius=0.2)


def test_velocity_is_the_derivative_of_position(
    problem_and_reference: tuple[np.ndarray, Reference],
) -> None:
    _, reference = problem_and_reference
    travelled = np.cumsum(reference.velocity, axis=0) * TIME_STEP
    error = reference.position - reference.position[0] - travelled
    assert np.abs(error).max() < TOP_SPEED * TIME_STEP


def test_on_the_reference_only_the_models_force_is_left() -> None:
    at, moving, accelerating = np.zeros(2), np.array([1.0, -2.0]), np.array([3.0, 4.0])
    action = tracking_action(at, moving, at, moving, accelerating)
    expected = (BALL_MASS * accelerating + JOINT_DAMPING * moving) / ACTUATOR_GEAR
    np.testing.assert_allclose(action, expected)


def test_actions_stay_in_range() -> None:
    far = np.array([100.0, -100.0])
    action = tracking_action(far, far, -far, -far, far)
    assert np.abs(action).max() <= 1.0


def test_noise_has_the_stated_spread_and_is_smooth() -> None:
    noise = smooth_noise(200_000, 0.05, np.random.default_rng(0))
    assert noise.std() == pytest.approx(0.05, rel=0.05)
    assert np.diff(noise, axis=0).std() < 0.1 * 0.05
