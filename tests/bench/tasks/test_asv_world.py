"""The vessel's world: map, problems, dynamics, filter, routes and data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from muninn.errors import InputError
from muninn_bench.networks.runs import load_runs
from muninn_bench.tasks.asv import data
from muninn_bench.tasks.asv.filter import TICK, Filter, Sensors
from muninn_bench.tasks.asv.lake import (
    BUOY_RADIUS,
    GOAL_RADIUS,
    HULL_RADIUS,
    SHORE_BUFFER,
    SMALLEST_DISTANCE,
    START_RADIUS,
    START_REGIONS,
    WORLD_RADIUS,
    Lake,
    Polygons,
    draw_problem,
    make_lake,
)
from muninn_bench.tasks.asv.vessel import Hull, Vessel, Weather, drag, over_ground, thrusts, wrap

LAKE = make_lake()
STILL = (0.0, 0.0)


def top_speed(hull: Hull) -> float:
    """Steady surge speed at full thrust: the positive root of drag = thrust, m/s."""
    linear, quadratic = hull.surge
    force = 2.0 * hull.thrust_high
    return (math.sqrt(linear * linear + 4.0 * quadratic * force) - linear) / (2.0 * quadratic)


def energy(vessel: Vessel) -> float:
    """Kinetic energy of the motion through the water, J."""
    hull = vessel.hull
    masses = np.array([hull.mass_surge, hull.mass_sway, hull.inertia_yaw])
    return float(0.5 * masses @ np.square([vessel.u, vessel.v, vessel.r]))


def outline_points(ring: np.ndarray, per_edge: int) -> np.ndarray:
    share = np.arange(per_edge)[:, None, None] / per_edge
    return (ring + share * (np.roll(ring, -1, axis=0) - ring)).reshape(-1, 2)


def winding(ring: np.ndarray, point: np.ndarray) -> float:
    """Turns of the outline around a point: 0 outside, +-1 inside."""
    angle = np.arctan2(*(ring - point).T[::-1])
    turn = np.diff(angle, append=angle[:1])
    return float(((turn + np.pi) % (2.0 * np.pi) - np.pi).sum() / (2.0 * np.pi))


def test_signed_distance_agrees_with_dense_outlines_and_winding_numbers() -> None:
    points = np.random.default_rng(0).uniform(-110.0, 110.0, (300, 2))
    for polygons in (LAKE.shore, LAKE.islands):
        dense = np.concatenate([outline_points(ring, 200) for ring in polygons.rings])
        nearest = np.array([np.hypot(*(dense - point).T).min() for point in points])
        inside = [any(abs(winding(r, p)) > 0.5 for r in polygons.rings) for p in points]
        found = polygons.signed_distance(points)
        assert np.abs(np.abs(found) - nearest).max() < 0.03
        assert np.array_equal(found < 0.0, inside)
        assert 10 < sum(inside) < 290


def test_signed_distance_of_a_square_and_a_disc_is_exact() -> None:
    square = Polygons((np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]),))
    points = np.array([[1.0, 1.5], [3.0, 3.0], [-1.0, 1.0], [1.0, 0.0]])
    assert square.signed_distance(points) == pytest.approx([-0.5, math.sqrt(2.0), 1.0, 0.0])
    far = Polygons((square.rings[0] + 1e3,))
    lake = Lake(far, far, np.array([[1.0, 0.0]]))
    found = lake.to_obstacles(np.array([[1.0, 0.0], [4.0, 4.0]]))
    assert found == pytest.approx([-BUOY_RADIUS, 5.0 - BUOY_RADIUS])


def test_the_lake_fits_the_world_and_blocks_most_straight_lines() -> None:
    radii = np.hypot(*LAKE.shore.rings[0].T)
    assert radii.max() == pytest.approx(WORLD_RADIUS)
    generator = np.random.default_rng(1)
    blocked = 0
    for _ in range(100):
        problem = draw_problem(LAKE, generator)
        share = np.linspace(0.0, 1.0, 200)[:, None]
        line = problem.start + share * (problem.goal - problem.start)
        blocked += bool(LAKE.clearance(line).min() < 0.0)
    assert blocked >= 60


def test_problems_keep_the_margins_of_the_protocol() -> None:
    generator = np.random.default_rng(2)
    for _ in range(200):
        problem = draw_problem(LAKE, generator)
        assert np.hypot(*(START_REGIONS - problem.start).T).min() <= START_RADIUS
        assert LAKE.clearance(problem.start) > 1.0
        assert math.dist(problem.start, problem.goal) >= SMALLEST_DISTANCE
        angle = np.linspace(0.0, 2.0 * np.pi, 60)
        rim = problem.goal + GOAL_RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        assert LAKE.to_shore(rim).min() >= SHORE_BUFFER - 1e-9
        assert LAKE.to_obstacles(rim).min() >= -1e-9


def test_full_thrust_reaches_the_closed_form_of_the_steady_speed() -> None:
    # Wind exactly as fast as the vessel exerts no force on it.
    hull = Hull()
    vessel = Vessel(hull, 0.0, 0.0, 0.0)
    for _ in range(6000):
        vessel.step(1e3, 1e3, STILL, (vessel.u, 0.0), 0.005)
    top = top_speed(hull)
    assert drag(hull.surge, top) == pytest.approx(2.0 * hull.thrust_high)
    assert vessel.u == pytest.approx(top, abs=1e-6)
    assert vessel.left == pytest.approx(hull.thrust_high)
    assert vessel.y == vessel.heading == 0.0


def test_energy_decays_without_thrust() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        vessel = Vessel(Hull(), 0.0, 0.0, generator.uniform(-3.0, 3.0))
        vessel.u, vessel.v, vessel.r = generator.uniform(-1.5, 1.5, 3)
        before = first = energy(vessel)
        for _ in range(400):
            vessel.step(0.0, 0.0, STILL, STILL, 0.005)
            assert energy(vessel) <= before
            before = energy(vessel)
        assert before < 0.5 * first


def test_a_free_vessel_drifts_with_the_current() -> None:
    vessel = Vessel(Hull(), 0.0, 0.0, 1.0)
    current = (0.2, -0.1)
    vessel.set_ground_velocity(*current, current)
    assert energy(vessel) == pytest.approx(0.0, abs=1e-12)
    for _ in range(2000):
        vessel.step(0.0, 0.0, current, STILL, 0.005)
    assert (vessel.x, vessel.y) == pytest.approx((2.0, -1.0))
    assert over_ground(vessel.heading, vessel.u, vessel.v, current) == pytest.approx(current)


def test_thrusts_add_up_where_they_fit_and_stay_in_the_envelope() -> None:
    hull = Hull()
    left, right = thrusts(hull, 60.0, 7.0)
    assert left + right == pytest.approx(60.0)
    assert hull.arm * (right - left) == pytest.approx(7.0)
    generator = np.random.default_rng(4)
    for force, moment in generator.uniform(-400.0, 400.0, (200, 2)):
        pair = thrusts(hull, force, moment)
        assert hull.thrust_low - 1e-9 <= min(pair) <= max(pair) <= hull.thrust_high + 1e-9
        # Turning keeps its sign even when nothing else fits.
        assert (pair[1] - pair[0]) * moment >= 0.0


def test_weather_is_modest_slow_and_of_the_seed() -> None:
    times = np.arange(0.0, 180.0, 0.5)
    for seed in range(20):
        weather, again = (Weather(np.random.default_rng(seed)) for _ in range(2))
        current = np.array([weather.current(t) for t in times])
        wind = np.array([weather.wind(t) for t in times])
        assert np.hypot(*current.T).max() <= 0.25 * 4.0 / 3.0
        assert np.hypot(*wind.T).max() <= 5.0 * 4.0 / 3.0
        assert np.abs(np.diff(current, axis=0)).max() < 0.005
        assert again.wind(7.0) == weather.wind(7.0)


def test_the_filter_is_consistent_and_precise() -> None:
    """Normalised squared errors of (x, y, heading) average near 3 in wind and current."""
    hull, squares, errors = Hull(), [], []
    for seed in range(4):
        generator = np.random.default_rng([5, seed])
        weather = Weather(generator)
        vessel = Vessel(hull, 0.0, 8.0, 0.0)
        believed = np.zeros(8)
        believed[:3] = generator.normal((vessel.x, vessel.y, 0.0), (0.05, 0.05, 0.02))
        belief, sensors = Filter(hull, believed), Sensors(LAKE.buoys, generator)
        for tick in range(1, 500):
            now, sums = tick * TICK, np.zeros(3)
            command = (40.0 + 20.0 * math.sin(now), 40.0 + 20.0 * math.sin(1.3 * now))
            for _ in range(10):
                vessel.step(*command, weather.current(now), weather.wind(now), TICK / 10.0)
                sums += vessel.left, vessel.right, vessel.r
            left, right, rate = sums / 10.0
            belief.predict(left, right)
            belief.update(*sensors.read(tick, vessel, rate, belief))
            if tick > 60:
                error = belief.mean[:3] - [vessel.x, vessel.y, vessel.heading]
                squares.append(error @ np.linalg.solve(belief.covariance[:3, :3], error))
                errors.append(np.abs(error))
    assert 2.0 < np.mean(squares) < 4.5
    assert np.percentile(squares, 95) < 12.0
    assert (np.mean(errors, axis=0) < (0.015, 0.015, 0.002)).all()


def test_a_bearing_behind_the_vessel_is_no_full_turn() -> None:
    """A buoy straight astern: bearings jump by 2 pi there, innovations must not."""
    hull, generator = Hull(), np.random.default_rng(6)
    vessel = Vessel(hull, 10.0, 0.0, 0.0)
    belief = Filter(hull, np.array([10.0, 0.0, 9.0 * math.tau, *np.zeros(5)]))
    sensors = Sensors(np.array([[-20.0, 0.0]]), generator)
    for tick in range(1, 40):
        belief.predict(0.0, 0.0)
        belief.update(*sensors.read(tick, vessel, 0.0, belief))
        assert abs(wrap(float(belief.mean[2]))) < 0.03


def test_runs_are_free_bounded_and_end_at_rest() -> None:
    lake = LAKE
    for index in range(15):
        (run,) = data.make_runs(0, index)
        assert len(run) <= data.HORIZON
        assert lake.clearance(run[:, :2]).min() >= data.SMALLEST_CLEARANCE
        assert np.hypot(*run[:, 2:].T).max() <= data.TOP_SPEED
        assert np.hypot(*np.diff(run[:, 2:], axis=0).T).max() / data.FRAME_SECONDS < 1.3
        assert (run[-1, 2:] == 0.0).all()
        # Velocities are those of the positions, but for the trapezoid's own error.
        steps = np.diff(run[:-1, :2], axis=0) / data.FRAME_SECONDS
        assert (
            np.abs(steps - 0.5 * (run[1:-1, 2:] + run[:-2, 2:])).max() < 0.12
        )  # the trapezoid's own error


def test_routes_respect_speed_acceleration_and_turn_rate() -> None:
    _, router = data._router()
    generator = np.random.default_rng(7)
    for _ in range(8):
        problem = draw_problem(LAKE, generator)
        route = router.route(problem.start, problem.goal, generator)
        assert route is not None
        times, positions, velocities = route.x, route(route.x), route(route.x, 1)
        assert (positions[0], positions[-1]) == (
            pytest.approx(problem.start),
            pytest.approx(problem.goal),
        )
        assert (np.diff(times) > 0.0).all()
        assert LAKE.clearance(positions).min() >= data.MARGIN - 0.3
        assert LAKE.to_obstacles(positions).min() > HULL_RADIUS
        speed = np.hypot(*velocities.T)
        assert max(speed[0], speed[-1]) < 1e-9
        assert speed.max() <= data.CRUISE + 1e-9
        assert (np.abs(np.diff(speed) / np.diff(times))).max() <= data.ACCELERATION + 1e-6
        moving = speed > 0.3
        turn = np.abs(np.diff(np.unwrap(np.arctan2(*velocities[moving].T[::-1]))))
        assert (turn / np.diff(times[moving])).max() <= 1.1 * data.TURN_RATE


def test_data_do_not_depend_on_chunks_or_workers_and_survive_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.RECORDING.generate(tmp_path / "asv.npz", 3, seed=4, workers=1)
    stored = load_runs(tmp_path / "asv.npz")
    wanted = np.concatenate([run for index in range(3) for run in data.make_runs(4, index)])
    assert np.abs(stored.frames - wanted).max() < 0.005
    monkeypatch.setattr("muninn_bench.tasks.recorded.SHARD", 2)
    data.RECORDING.generate(tmp_path / "two.npz", 3, seed=4, workers=2)
    np.testing.assert_array_equal(load_runs(tmp_path / "two.npz").frames, stored.frames)
    assert (stored.frame_seconds, stored.position_channels, stored.state_channels) == (1.0, 2, 4)
    with pytest.raises(InputError, match="at least one run"):
        data.RECORDING.generate(tmp_path / "none.npz", 0)
