"""Flights of the Crazyflie: plans joined late, holding, outcomes, determinism, the screen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from muninn.model.schedule import Schedule
from muninn_bench.networks.teacher import Teacher
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.platform import Episode, Platform
from muninn_bench.tasks.crazyflie import arena, data
from muninn_bench.tasks.crazyflie.arena import Problem
from muninn_bench.tasks.crazyflie.controller import PlanSpline
from muninn_bench.tasks.crazyflie.data import HORIZON
from muninn_bench.tasks.crazyflie.episode import LOST, Crazyflie, CrazyflieEpisode
from muninn_bench.tasks.crazyflie.model import Wind

pytest.importorskip("mujoco")

CALM = Wind(steady=0.0, gusts=0.0)
OPEN = Problem(np.array([-2.0, 1.9, -0.3]), np.array([-1.9, -0.2, -0.3]))
"""A problem whose straight line, around x = -2, is nearly free."""


def make_teacher() -> Teacher:
    torch.manual_seed(0)
    schedule = Schedule.cosine(10)
    tiny = UnetConfig(channels=6, widths=(8, 16), blocks=1, middle_blocks=1, time_width=16, heads=2)
    limits = torch.tensor([2.3, 2.3, 0.8, 1.8, 1.8, 1.8])
    return Teacher(
        TemporalUnet(tiny, schedule, HORIZON).eval(), -limits, limits, HORIZON, schedule, 0.1
    )


TEACHER = make_teacher()


def plan_along(*corners: list[float]) -> tuple[Tensor, np.ndarray]:
    """A plan of the run along a polyline, normalised, (horizon, 6); and in world units."""
    run = data.timed(data.rounded(np.array(corners, dtype=np.float64)))
    padded = run[np.minimum(np.arange(HORIZON), len(run) - 1)]
    return TEACHER.normalise(torch.tensor(padded, dtype=torch.float32)), padded


def straight(problem: Problem) -> tuple[Tensor, np.ndarray]:
    return plan_along(problem.start.tolist(), problem.goal.tolist())


def joined(run: np.ndarray) -> tuple[PlanSpline, float]:
    """What is followed of a run, and where a plan from rest is joined, seconds after its start."""
    spline = PlanSpline(run, TEACHER.frame_seconds)
    return spline, spline.leaves()


def test_it_is_a_platform_with_episodes() -> None:
    platform: Platform = Crazyflie(TEACHER)
    episode: Episode = platform.begin(3)
    assert (platform.name, platform.period, platform.candidates) == ("crazyflie", 0.1, 3)
    context = episode.context()
    plan = platform.planner.sample(context, generator=torch.Generator().manual_seed(0))
    assert context.shape == (1, 2, 6) and plan.shape == (1, HORIZON, 6)
    # The plan begins where the drone is, at rest at the goal it ends.
    path = platform.path(plan[0])
    np.testing.assert_allclose(path[0], episode.snapshot().position, atol=0.01)
    np.testing.assert_allclose(path[-1], episode.goal, atol=1e-5)
    assert plan[0, -1, 3:].abs().max() == 0.0


def test_a_plan_is_flown_to_success() -> None:
    episode = CrazyflieEpisode(TEACHER, 0, problem=OPEN)
    plan, run = straight(OPEN)
    spline, lead = joined(run)
    assert 0.1 < lead < 0.3
    episode.follow(plan, episode.time)
    for _ in range(9):
        episode.advance(0.1)
        place, _, _ = spline.at(lead + episode.time)
        assert np.linalg.norm(episode.snapshot().position - place) < 0.1
    episode.advance(20.0)
    assert episode.outcome == "success"
    near = np.linalg.norm(run[:, :3] - OPEN.goal, axis=1) < 0.15
    arrives = np.flatnonzero(near)[0] / 10.0 - lead
    assert arrives + 0.8 < episode.time < arrives + 1.4
    assert 0.0 < episode.smallest_clearance <= episode.snapshot().clearance
    ended = episode.time
    episode.advance(1.0)
    assert episode.time == ended


def test_plans_go_on_from_the_setpoint() -> None:
    episode = CrazyflieEpisode(TEACHER, 0, problem=OPEN)
    plan, run = straight(OPEN)
    episode.follow(plan, 0.0)
    episode.advance(0.8)
    start = TEACHER.unnormalise(episode.context())[0, 0].numpy()
    # The reference closes in on the plan; the drone, in wind, is only near it.
    spline, lead = joined(run)
    place, velocity, _ = spline.at(lead + 0.8)
    np.testing.assert_allclose(start[:3], place, atol=0.03)
    np.testing.assert_allclose(start[3:], velocity, atol=0.15)
    assert 1e-3 < np.linalg.norm(start[:3] - episode.snapshot().position) < 0.1


def test_damping_does_not_compound_from_plan_to_plan() -> None:
    plan, run = straight(OPEN)
    episode = CrazyflieEpisode(TEACHER, 0, problem=OPEN)
    episode.follow(plan, 0.0, factor=0.5)
    episode.advance(1.0)
    start = TEACHER.unnormalise(episode.context())[0, 0].numpy()
    # Half the way in time along the plan, at the plan's own speed there.
    spline, lead = joined(run)
    place, velocity, _ = spline.at(lead + 0.5)
    np.testing.assert_allclose(start[:3], place, atol=0.03)
    np.testing.assert_allclose(start[3:], velocity, atol=0.15)
    episode.hold()
    episode.advance(2.0)
    assert np.abs(TEACHER.unnormalise(episode.context())[0, 0, 3:].numpy()).max() < 0.02


def test_a_setpoint_far_from_the_drone_starts_again_at_the_drone() -> None:
    episode = CrazyflieEpisode(TEACHER, 0, CALM, OPEN)
    episode._reference.position = OPEN.start + np.array([0.0, LOST + 0.05, 0.0])
    before = TEACHER.unnormalise(episode.context())[0, 0, :3].numpy()
    assert np.linalg.norm(before - OPEN.start) > LOST
    episode.advance(0.01)
    after = TEACHER.unnormalise(episode.context())[0, 0, :3].numpy()
    np.testing.assert_allclose(after, OPEN.start, atol=0.01)


def test_a_late_plan_is_joined_where_it_would_have_been() -> None:
    plan, run = straight(OPEN)
    places = []
    assert joined(run)[1] < 0.3
    for late in (0.3, 0.437):
        episode = CrazyflieEpisode(TEACHER, 0, CALM, OPEN)
        episode.advance(late)
        episode.follow(plan, 0.0)
        episode.advance(1.8 - late)
        assert episode.time == pytest.approx(1.8)
        places.append(episode.snapshot().position)
    # Within 5 cm; a plan joined where it leaves would be farther behind.
    np.testing.assert_allclose(places[1], places[0], atol=0.05)
    assert np.linalg.norm(places[1] - run[18, :3]) < 0.1


def test_hold_hovers_where_it_began_even_if_called_again() -> None:
    episode = CrazyflieEpisode(TEACHER, 5, problem=OPEN)
    plan, _ = straight(OPEN)
    episode.follow(plan, 0.0, factor=0.5)
    episode.advance(1.0)
    before = episode.snapshot().position
    assert np.linalg.norm(before - OPEN.start) > 0.05
    episode.hold()
    for _ in range(25):
        episode.advance(0.1)
        episode.hold()
    assert np.linalg.norm(episode.snapshot().position - before) < 0.05
    assert episode.outcome is None


def test_without_any_plan_it_hovers_until_the_timeout() -> None:
    episode = CrazyflieEpisode(TEACHER, 2)
    start = episode.snapshot().position
    episode.advance(31.0)
    assert (episode.outcome, episode.time) == ("timeout", 30.0)
    assert np.linalg.norm(episode.snapshot().position - start) < 0.05


def test_a_plan_into_a_wall_is_a_collision_and_does_not_pass_the_screen() -> None:
    wall = arena.BOXES[0]
    aside = np.array([0.5, 0.0, 0.0])
    through = Problem(wall[:3] - aside, wall[:3] + aside)
    plan, _ = straight(through)
    platform = Crazyflie(TEACHER)
    assert not platform.screen(plan, None)
    episode = CrazyflieEpisode(TEACHER, 0, problem=through)
    episode.follow(plan, 0.0)
    episode.advance(20.0)
    assert episode.outcome == "collision"
    assert -0.05 < episode.smallest_clearance < 0.0


def test_the_screen_sees_the_whole_spline_with_the_margin() -> None:
    platform = Crazyflie(TEACHER)
    plan, run = straight(OPEN)
    assert platform.screen(plan, None)
    np.testing.assert_allclose(platform.path(plan), run[:, :3], atol=1e-6)
    broken = plan.clone()
    broken[40, 1] = float("nan")
    assert not platform.screen(broken, None)
    # Two frames outside of a pillar, the spline between them through it.
    x, y, radius = arena.CYLINDERS[1]
    sides = [[x - radius - 0.2, y, 0.0], [x + radius + 0.2, y, 0.0]]
    jump = np.repeat(sides, HORIZON // 2, axis=0)
    world = torch.tensor(np.concatenate([jump, 0.0 * jump], axis=1), dtype=torch.float32)
    assert arena.clearance(jump).min() > 0.15
    assert not platform.screen(TEACHER.normalise(world), None)
    # Past a wall of the arena: clear of it by more, or less, than the margin.
    for gap, passes in ((0.11, True), (0.09, False)):
        x = -arena.HALF_SIZE[0] + gap
        close, _ = plan_along([x, 1.0, 0.0], [x, 1.8, 0.0])
        assert platform.screen(close, None) is passes


def fly(seed: int, steps: list[float]) -> list[np.ndarray]:
    """Positions and contexts after each of the given times; a plan halfway."""
    episode = CrazyflieEpisode(TEACHER, seed, problem=OPEN)
    seen = []
    for index, seconds in enumerate(steps):
        if index == len(steps) // 2:
            episode.follow(straight(OPEN)[0], episode.time - 0.05, 0.7)
        episode.advance(seconds)
        seen.append(np.concatenate([episode.snapshot().position, episode.context().flatten()]))
    return seen


def test_a_flight_is_a_function_of_its_seed_and_its_commands() -> None:
    steps = [0.0673, 0.1, 0.0321, 0.1, 0.25]
    np.testing.assert_array_equal(fly(4, steps), fly(4, steps))
    assert np.abs(fly(4, steps)[-1] - fly(5, steps)[-1]).max() > 1e-3


def test_looking_changes_nothing_and_neither_does_how_time_is_cut() -> None:
    once = CrazyflieEpisode(TEACHER, 9)
    often = CrazyflieEpisode(TEACHER, 9)
    once.advance(1.0)
    for _ in range(300):
        often.advance(1.0 / 300)
        often.context()
        often.snapshot()
    assert often.time == pytest.approx(once.time)
    np.testing.assert_array_equal(often.snapshot().position, once.snapshot().position)
    assert torch.equal(often.context(), once.context())


def test_seeds_draw_other_problems_and_the_clock_starts_at_zero() -> None:
    platform = Crazyflie(TEACHER)
    first, second = platform.begin(0), platform.begin(1)
    assert first.time == 0.0 and first.outcome is None
    assert np.linalg.norm(first.goal - second.goal) > 0.01
    assert first.snapshot().to_goal >= 1.0
    assert first.smallest_clearance >= arena.WORKSPACE_MARGIN - arena.COLLISION_MARGIN
    other = replace(TEACHER, frame_seconds=0.2)
    assert Crazyflie(other).teacher.frame_seconds == 0.2
