"""The vessel under control: references, MPC, episodes and their outcomes, the screen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.teacher import Teacher, build_network
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.tasks.asv.controller import (
    FRAME_SECONDS,
    HORIZON,
    SCREENED,
    Mpc,
    PlanReference,
    Stop,
    followed,
    stop_ahead,
    thrust_loop,
)
from muninn_bench.tasks.asv.episode import LOST, AsvEpisode, AsvPlatform
from muninn_bench.tasks.asv.lake import BUOY_RADIUS, GOAL_RADIUS, SHORE_BUFFER, Problem, make_lake
from muninn_bench.tasks.asv.vessel import Hull, Weather, drag, over_ground

pytest.importorskip("osqp")


def ground_velocity(episode: AsvEpisode, current: float) -> tuple[float, float]:
    """Of the true vessel, in a current along x."""
    vessel = episode.vessel
    return over_ground(vessel.heading, vessel.u, vessel.v, (current, 0.0))


def top_speed(hull: Hull) -> float:
    """At which drag takes up full thrust, m/s."""
    speeds = np.linspace(0.0, 5.0, 50_001)
    return float(np.interp(2.0 * hull.thrust_high, [drag(hull.surge, u) for u in speeds], speeds))


LAKE = make_lake()
OPEN_WATER = np.array([-70.0, -30.0])


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    """Coordinates of the real one, a network of no use."""
    schedule = Schedule.cosine(100)
    network = build_network(
        UnetConfig(channels=4, widths=(8, 8), heads=1, time_width=8), schedule, HORIZON
    )
    high = torch.tensor([94.0, 87.0, 2.2, 2.2])
    return Teacher(network.eval(), -high, high, HORIZON, schedule, FRAME_SECONDS)


@dataclass
class Air(Weather):
    """Current and wind that do not change."""

    water: tuple[float, float] = (0.0, 0.0)
    air: tuple[float, float] = (0.0, 0.0)

    def current(self, time: float) -> tuple[float, float]:
        return self.water

    def wind(self, time: float) -> tuple[float, float]:
        return self.air


def begin(
    teacher: Teacher,
    start: np.ndarray = OPEN_WATER,
    heading: float = 0.0,
    goal: tuple[float, float] = (60.0, 0.0),
    weather: Weather | None = None,
    seed: int = 0,
) -> AsvEpisode:
    problem = Problem(np.asarray(start, dtype=float), heading, np.array(goal))
    return AsvEpisode(LAKE, problem, weather or Air(), np.random.default_rng(seed), teacher)


def straight(teacher: Teacher, start: np.ndarray, speed: float) -> torch.Tensor:
    """A plan along +x: at this speed for 20 s, then braking to rest within a frame."""
    times = FRAME_SECONDS * np.arange(HORIZON)
    frames = np.zeros((HORIZON, 4))
    frames[:, 0] = start[0] + speed * np.minimum(times, 20.0 + 0.5 * FRAME_SECONDS)
    frames[:, 1] = start[1]
    frames[times <= 20.0, 2] = speed
    return teacher.normalise(torch.tensor(frames, dtype=torch.float32))


def where(episode: AsvEpisode) -> np.ndarray:
    return np.array([episode.vessel.x, episode.vessel.y])


def test_a_plan_reference_passes_its_frames_and_stays_at_the_last() -> None:
    generator = np.random.default_rng(0)
    frames = generator.normal(size=(9, 4))
    reference = PlanReference(frames, begin=3.0)
    times = 3.0 + FRAME_SECONDS * np.arange(9)
    position, velocity = reference.at(times)
    assert position == pytest.approx(frames[:, :2])
    assert velocity[:-1] == pytest.approx(frames[:-1, 2:])
    for time in (0.0, 100.0):
        still, _ = reference.at(np.array([time]))
        assert still[0] == pytest.approx(frames[0 if time == 0.0 else -1, :2])
    assert (reference.at(np.array([100.0]))[1] == 0.0).all()
    inside = generator.uniform(3.0, 6.9, 50)
    ahead, behind = reference.at(inside + 1e-6)[0], reference.at(inside - 1e-6)[0]
    assert (ahead - behind) / 2e-6 == pytest.approx(reference.at(inside)[1], abs=1e-4)


def test_a_stop_brakes_evenly_to_rest() -> None:
    reference = stop_ahead(np.array([1.0, 2.0]), np.array([1.2, 0.0]), begin=5.0)
    position, velocity = reference.at(np.array([5.0, 6.0, 7.4, 60.0]))
    assert velocity[:, 0] == pytest.approx([1.2, 0.7, 0.0, 0.0])
    # v^2 / 2a with a = 0.5 m/s^2.
    assert position[:, 0] == pytest.approx([1.0, 1.95, 1.0 + 1.44, 1.0 + 1.44])
    assert (position[:, 1] == 2.0).all()


def test_a_stop_on_a_plan_brakes_evenly_along_it() -> None:
    turn = 0.1 * np.arange(40)  # radians: a circle of radius 15 m at 1.5 m/s
    frames = np.stack([np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn)], axis=1)
    frames *= (15.0, 15.0, 1.5, 1.5)
    stop = Stop(PlanReference(frames, begin=2.0, joined=4.0), begin=9.3)
    times = np.array([9.3, 12.3, 19.3, 60.0])
    position, velocity = stop.at(times)
    assert np.linalg.norm(position, axis=1) == pytest.approx(15.0, abs=1e-2)
    assert np.linalg.norm(velocity, axis=1) == pytest.approx([1.5, 1.05, 0.0, 0.0], abs=1e-3)
    way = 15.0 * np.unwrap(np.arctan2(position[:, 1], position[:, 0]))
    assert way - way[0] == pytest.approx([0.0, 3.825, 7.5, 7.5], abs=2e-2)  # v^2 / 2a


def test_a_stop_on_a_damped_plan_ends_where_it_does_undamped() -> None:
    frames = np.zeros((HORIZON, 4))
    frames[:, 0], frames[:, 2] = 1.5 * np.arange(HORIZON), 1.5
    ends = []
    for factor in (1.0, 0.5):
        plan = PlanReference(frames, begin=0.0, joined=4.0, factor=factor)
        stop = Stop(plan, begin=4.0 + 3.0 / factor)
        place, velocity = stop.at(np.array([4.0 + 3.0 / factor, 100.0]))
        assert velocity[0, 0] == pytest.approx(1.5 * factor) and velocity[1, 0] == 0.0
        ends.append(place[1, 0])
    assert ends[1] == pytest.approx(ends[0])


def test_a_plan_is_followed_where_positions_and_velocities_agree() -> None:
    times = np.arange(60.0)
    frames = np.stack([1.5 * times, 10.0 * np.sin(0.1 * times)], axis=1)
    speeds = np.stack([np.full(60, 1.5), np.cos(0.1 * times)], axis=1)
    shaken = frames + np.random.default_rng(0).normal(0.0, 0.2, frames.shape)
    shaken[0] = frames[0]
    found = followed(np.concatenate([shaken, speeds], axis=1))
    assert (found[0, :2] == frames[0]).all() and (found[:, 2:] == speeds).all()
    assert np.sqrt(((found[:, :2] - frames) ** 2).mean()) < 0.1
    steps = np.linalg.norm(np.diff(found[:, :2] - frames, axis=0), axis=1)
    assert steps.max() < 0.05  # of 0.6 m before


def test_the_mpc_tracks_a_straight_line_within_the_envelope(teacher: Teacher) -> None:
    episode = begin(
        teacher,
        OPEN_WATER + np.array([0.0, 2.0]),
        heading=2.5,
        weather=Air((0.1, 0.2), (2.0, -3.0)),
    )
    episode.follow(straight(teacher, OPEN_WATER, 1.5), taken=0.0)
    hull, errors = Hull(), []
    for _ in range(240):
        episode.advance(0.05)
        assert hull.thrust_low - 1e-9 <= min(episode.vessel.left, episode.vessel.right)
        assert max(episode.vessel.left, episode.vessel.right) <= hull.thrust_high + 1e-9
        errors.append(abs(episode.vessel.y - OPEN_WATER[1]))
    assert max(errors[180:]) < 0.6
    assert episode.vessel.x == pytest.approx(OPEN_WATER[0] + 1.5 * episode.time, abs=1.5)


def test_an_unreachable_reference_gets_full_thrust_and_no_more() -> None:
    hull = Hull()
    mpc, state = Mpc(hull), np.zeros(8)
    state[3] = top_speed(hull)
    far = stop_ahead(np.array([500.0, 0.0]), np.zeros(2), 0.0)
    for _ in range(30):
        speed, rate = mpc.solve(0.0, state, far)
    # At top speed the thrust envelope allows no more speed.
    assert speed == pytest.approx(top_speed(hull), abs=0.05)
    assert rate == pytest.approx(0.0, abs=0.02)
    mpc, state[3] = Mpc(hull), 0.0
    for _ in range(30):
        speed, _ = mpc.solve(0.0, state, far)
    # From rest it is the most that full thrust gives in a quarter of a second, and nearly that.
    most = 0.25 * 2.0 * hull.thrust_high / hull.mass_surge
    assert 0.8 * most < speed < most + 0.01


def test_thrust_is_saturated() -> None:
    hull, state = Hull(), np.zeros(8)
    assert thrust_loop(hull, (50.0, 0.0), state) == (hull.thrust_high, hull.thrust_high)
    assert 0.0 < thrust_loop(hull, (0.2, 0.0), state)[0] < hull.thrust_high


def test_a_damped_plan_is_followed_along_the_same_way_at_a_share_of_its_speed() -> None:
    frames = np.random.default_rng(0).normal(size=(9, 4))
    plain = PlanReference(frames, begin=1.0)
    damped = PlanReference(frames, begin=1.0, joined=3.0, factor=0.5)
    times = np.linspace(3.0, 12.0, 40)
    position, velocity = damped.at(times)
    wanted = plain.at(3.0 + 0.5 * (times - 3.0))
    assert position == pytest.approx(wanted[0])
    assert velocity == pytest.approx(0.5 * wanted[1])


def test_a_damped_vessel_goes_slower_but_its_plans_do_not(teacher: Teacher) -> None:
    ways = []
    for factor in (1.0, 0.5):
        episode = begin(teacher)
        episode.follow(straight(teacher, OPEN_WATER, 1.5), taken=0.0, factor=factor)
        episode.advance(8.0)
        ways.append(episode.vessel.x - OPEN_WATER[0])
        start = teacher.unnormalise(episode.context())[0, 0].numpy()
        assert start[:2] == pytest.approx(
            OPEN_WATER + np.array([8.0 * 1.5 * factor, 0.0]), abs=1e-3
        )
        assert start[2:] == pytest.approx([1.5, 0.0], abs=1e-3)
    assert 0.4 * ways[0] < ways[1] < 0.7 * ways[0]


def test_a_late_plan_is_joined_where_it_is_by_now(teacher: Teacher) -> None:
    plan = straight(teacher, OPEN_WATER, 1.0)
    late = begin(teacher)
    late.advance(2.5)
    late.follow(plan, taken=0.5)
    late.advance(10.0)
    due = OPEN_WATER[0] + 1.0 * (late.time - 0.5)
    assert late.vessel.x == pytest.approx(due, abs=0.6)
    assert late.time == pytest.approx(12.5)


@pytest.mark.parametrize("water, air", [((0.25, 0.1), (0.0, 0.0)), ((0.0, 0.0), (-4.0, 3.0))])
def test_hold_stays_within_two_metres(
    teacher: Teacher, water: tuple[float, float], air: tuple[float, float]
) -> None:
    episode = begin(teacher, heading=1.0, weather=Air(water, air))
    for _ in range(20):
        episode.advance(1.0)
        episode.hold()  # again, as after every missed plan: it must not creep
        assert np.hypot(*(where(episode) - OPEN_WATER)) < 2.0


def test_a_vessel_that_holds_does_not_circle_round_its_place(teacher: Teacher) -> None:
    """Half a metre beside it, underway and turning: in calm water it once went round for ever."""
    episode = begin(teacher)
    episode.vessel.y -= 0.55
    episode.vessel.u, episode.vessel.r = 0.65, 1.15
    episode.advance(10.0)
    turned = 0.0
    for _ in range(600):
        episode.advance(0.05)
        turned += 0.05 * episode.vessel.r
    assert abs(turned) < math.pi
    assert np.hypot(*(where(episode) - OPEN_WATER)) < 1.0


def test_hold_stops_a_moving_vessel(teacher: Teacher) -> None:
    episode = begin(teacher)
    episode.follow(straight(teacher, OPEN_WATER, 1.8), taken=0.0)
    episode.advance(10.0)
    place = where(episode)
    episode.hold()
    episode.advance(16.0)
    assert np.hypot(*(where(episode) - place)) < 12.5  # v^2 / 2a is 10.8
    assert np.hypot(*ground_velocity(episode, 0.0)) < 0.3


def test_hold_in_a_bend_stays_on_the_plan(teacher: Teacher) -> None:
    """Straight ahead would leave the water that was screened."""
    turn = 0.225 * np.arange(HORIZON)  # a circle of radius 8 m at 1.8 m/s
    frames = np.stack([np.sin(turn), 1.0 - np.cos(turn), np.cos(turn), np.sin(turn)], axis=1)
    frames *= (8.0, 8.0, 1.8, 1.8)
    frames[:, :2] += OPEN_WATER
    episode = begin(teacher)
    episode.follow(teacher.normalise(torch.tensor(frames, dtype=torch.float32)), taken=0.0)
    episode.advance(12.0)
    episode.hold()
    middle = OPEN_WATER + np.array([0.0, 8.0])
    for _ in range(15):
        episode.advance(1.0)
        assert abs(math.dist(where(episode), middle) - 8.0) < 0.5
    assert np.hypot(*ground_velocity(episode, 0.0)) < 0.3


def test_a_plan_is_not_followed_farther_than_it_was_screened(teacher: Teacher) -> None:
    episode = begin(teacher, goal=(60.0, 60.0))
    episode.follow(straight(teacher, OPEN_WATER, 1.5), taken=0.0)
    episode.advance(SCREENED + 5.0)
    assert np.hypot(*ground_velocity(episode, 0.0)) < 0.3
    assert where(episode)[0] - OPEN_WATER[0] < 1.5 * SCREENED


def test_the_bow_does_not_swing(teacher: Teacher) -> None:
    episode = begin(teacher, weather=Air((-0.15, 0.0), (3.0, 0.5)))
    episode.follow(straight(teacher, OPEN_WATER, 1.8), taken=0.0)
    episode.advance(8.0)
    rates = []
    for _ in range(200):
        episode.advance(0.05)
        rates.append(abs(episode.vessel.r))
    assert np.mean(rates) < math.radians(5.0)


def test_three_seconds_in_the_goal_are_a_success(teacher: Teacher) -> None:
    inside = begin(teacher, goal=(OPEN_WATER[0] + GOAL_RADIUS - 1.0, OPEN_WATER[1]))
    inside.advance(2.9)
    assert inside.outcome is None
    inside.advance(5.0)
    assert (inside.outcome, inside.time) == ("success", pytest.approx(3.0))
    outside = begin(teacher, goal=(OPEN_WATER[0] + GOAL_RADIUS + 1.0, OPEN_WATER[1]))
    outside.advance(4.0)
    assert outside.outcome is None


def shore_points() -> Iterator[tuple[float, np.ndarray]]:
    """Points at falling distances from the shore, going south from the middle of a bay."""
    for y in np.arange(-75.0, -95.0, -0.05):
        point = np.array([10.0, y])
        yield float(LAKE.to_shore(point)), point


def test_the_buffer_is_forgiven_for_one_second_and_the_shore_never(teacher: Teacher) -> None:
    inside = next(point for distance, point in shore_points() if distance < SHORE_BUFFER - 1.0)
    episode = begin(teacher, inside)
    episode.advance(1.0)
    assert episode.outcome is None
    episode.advance(0.2)
    assert (episode.outcome, episode.time) == ("collision", pytest.approx(1.05))
    assert episode.smallest_clearance < -0.9
    land = next(point for distance, point in shore_points() if distance < -0.3)
    assert begin(teacher, land).outcome == "collision"


def test_touching_a_buoy_ends_the_episode(teacher: Teacher) -> None:
    buoy = LAKE.buoys[1]
    episode = begin(teacher, buoy - (8.0, 0.0))
    episode.follow(straight(teacher, buoy - (8.0, 0.0), 1.5), taken=0.0)
    episode.advance(20.0)
    assert episode.outcome == "collision"
    contact = BUOY_RADIUS + 0.9
    assert np.hypot(*(where(episode) - buoy)) == pytest.approx(contact, abs=0.15)
    stopped = episode.time
    episode.advance(1.0)
    assert episode.time == stopped


def test_time_runs_out(teacher: Teacher) -> None:
    episode = begin(teacher)
    episode._substeps = 35_800  # 179 s
    episode.time = 179.0
    episode.advance(2.0)
    assert (episode.outcome, episode.time) == ("timeout", pytest.approx(180.0))


def test_episodes_repeat_from_their_seed_however_they_are_advanced(teacher: Teacher) -> None:
    platform = AsvPlatform(teacher)
    paths = []
    for steps in ([3.0], [0.0131] * 100 + [1.69]):
        episode = platform.begin(7)
        episode.follow(straight(teacher, where(episode), 1.5), taken=0.0)
        for seconds in steps:
            episode.advance(seconds)
        assert episode.time == pytest.approx(3.0)
        paths.append(episode)
    first, second = (np.array([e.vessel.x, e.vessel.y, *e.filter.mean]) for e in paths)
    assert np.array_equal(first, second)
    other = platform.begin(8)
    assert not np.array_equal(other.goal, paths[0].goal)


def test_plans_go_on_from_the_plan_and_the_goal_is_at_rest(teacher: Teacher) -> None:
    episode = begin(teacher, weather=Air((0.2, 0.0)))
    episode.follow(straight(teacher, OPEN_WATER, 1.5), taken=0.0)
    episode.advance(12.3)
    context = episode.context()
    assert context.shape == (1, 2, 4)
    start, goal = teacher.unnormalise(context)[0].numpy()
    assert start == pytest.approx([OPEN_WATER[0] + 12.3 * 1.5, OPEN_WATER[1], 1.5, 0.0], abs=1e-3)
    assert start[:2] == pytest.approx(where(episode), abs=1.0)
    assert goal == pytest.approx([60.0, 0.0, 0.0, 0.0], abs=1e-4)


def test_a_vessel_far_from_its_plan_plans_from_where_it_believes_to_be(teacher: Teacher) -> None:
    episode = begin(teacher, weather=Air((0.2, 0.0)))
    ahead = OPEN_WATER + np.array([LOST + 1.0, 0.0])
    episode.follow(straight(teacher, ahead, 0.0), taken=0.0)
    start = teacher.unnormalise(episode.context())[0, 0].numpy()
    assert start[:2] == pytest.approx(where(episode), abs=0.3)
    assert start[2:] == pytest.approx(ground_velocity(episode, 0.2), abs=0.1)


def test_plans_that_cannot_be_followed_are_refused(teacher: Teacher) -> None:
    episode, plan = begin(teacher), straight(teacher, OPEN_WATER, 1.0)
    with pytest.raises(InputError, match="finite"):
        episode.follow(plan * math.nan, taken=0.0)
    with pytest.raises(InputError, match="shape"):
        episode.follow(plan[:, :2], taken=0.0)
    with pytest.raises(InputError, match="past time"):
        episode.follow(plan, taken=1.0)


def test_the_screen_knows_the_map(teacher: Teacher) -> None:
    platform = AsvPlatform(teacher)
    context = begin(teacher).context()
    assert platform.screen(straight(teacher, OPEN_WATER, 1.0), context)
    through_an_island = straight(teacher, np.array([-20.0, -14.0]), 1.8)
    assert not platform.screen(through_an_island, context)
    # What is too far ahead to be run is not looked at: it is planned anew before.
    frames = np.zeros((HORIZON, 4))
    frames[:, :2], ahead = OPEN_WATER, round(SCREENED / FRAME_SECONDS)
    frames[ahead + 20 :, :2] = (0.0, 200.0)
    assert platform.screen(teacher.normalise(torch.tensor(frames, dtype=torch.float32)), context)
    frames[ahead - 2 :, :2] = (0.0, 200.0)
    assert not platform.screen(
        teacher.normalise(torch.tensor(frames, dtype=torch.float32)), context
    )
    # One that jumps over a buoy between two frames is caught by the middle.
    buoy = LAKE.buoys[1]
    jump = straight(teacher, buoy - (3.0, 0.0), 12.0)
    assert not platform.screen(jump, context)
    assert platform.path(jump)[0] == pytest.approx(buoy - (3.0, 0.0), abs=1e-3)


def test_snapshots_are_of_the_true_vessel(teacher: Teacher) -> None:
    episode = begin(teacher)
    episode.advance(0.5)
    snapshot = episode.snapshot()
    assert snapshot.position == pytest.approx(where(episode))
    assert snapshot.clearance == pytest.approx(float(LAKE.clearance(snapshot.position)))
    assert snapshot.to_goal == pytest.approx(math.dist(snapshot.position, (60.0, 0.0)))
    assert episode.smallest_clearance <= snapshot.clearance
