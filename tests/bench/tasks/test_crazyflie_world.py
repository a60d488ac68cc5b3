"""The Crazyflie's world: distances, problems, physics, the controller, setpoints, recorded runs."""

from __future__ import annotations

import numpy as np
import pytest

from muninn_bench.tasks.crazyflie import arena, data
from muninn_bench.tasks.crazyflie.controller import (
    LEFT,
    TOP_ACCELERATION,
    TOP_SPEED,
    GeometricController,
    PlanSpline,
    Reference,
    Setpoint,
)
from muninn_bench.tasks.crazyflie.model import (
    DRAG,
    GRAVITY,
    INERTIA,
    MASS,
    MIXER,
    MOTOR_RANGE,
    PHYSICS_STEP,
    Air,
    Drone,
    Wind,
)
from muninn_bench.tasks.paths import FIT

pytest.importorskip("mujoco")

STILL = np.zeros(3)


def surface_points() -> np.ndarray:
    """Points on the surfaces of all obstacles, 4 cm apart or less along each direction."""
    points = []
    for row in arena.BOXES:
        centre, half = row[:3], row[3:]
        axes = [np.linspace(-h, h, int(np.ceil(h / 0.02)) + 1) for h in half]
        for axis in range(3):
            for side in (-half[axis], half[axis]):
                grids = [*axes]
                grids[axis] = np.array([side])
                points.append(np.stack(np.meshgrid(*grids), axis=-1).reshape(-1, 3) + centre)
    for x, y, radius in arena.CYLINDERS:
        angle, height = np.meshgrid(np.linspace(0, 2 * np.pi, 80), np.linspace(-1, 1, 51))
        ring = [x + radius * np.cos(angle), y + radius * np.sin(angle), height]
        points.append(np.stack(ring, axis=-1).reshape(-1, 3))
    return np.concatenate(points)


def test_clearance_is_the_distance_to_the_nearest_surface() -> None:
    generator = np.random.default_rng(0)
    points = generator.uniform(-arena.HALF_SIZE, arena.HALF_SIZE, (200, 3))
    exact = arena.clearance(points)
    surface = surface_points()
    nearest = np.array([np.linalg.norm(surface - p, axis=1).min() for p in points])
    brute = np.minimum(nearest, (arena.HALF_SIZE - np.abs(points)).min(axis=1))
    outside = exact > 0.0
    assert 50 < outside.sum() < 200
    # The nearest point of a surface is at most 2.9 cm beside one of the grid on it.
    assert (exact[outside] <= brute[outside] + 1e-9).all()
    beside = np.sqrt(np.maximum(brute[outside] ** 2 - exact[outside] ** 2, 0.0))
    assert beside.max() < 0.029
    np.testing.assert_allclose(arena.clearance(arena.BOXES[:, :3]) < 0.0, True)
    assert arena.clearance(np.array([0.0, 2.6, 0.0])) < 0.0


def test_clearance_of_a_path_sees_what_lies_between_its_points() -> None:
    wall = arena.BOXES[0]
    aside = np.array([0.4, 0.0, 0.0])
    ends = np.array([wall[:3] - aside, wall[:3] + aside])
    assert arena.clearance(ends).min() > 0.1
    assert arena.path_clearance(ends) == pytest.approx(-wall[3], abs=0.01)


def test_problems_keep_their_margins_and_are_often_blocked() -> None:
    generator = np.random.default_rng(1)
    problems = [arena.draw_problem(generator) for _ in range(300)]
    starts, goals = (np.array([getattr(p, end) for p in problems]) for end in ("start", "goal"))
    assert arena.clearance(np.concatenate([starts, goals])).min() >= arena.WORKSPACE_MARGIN
    assert np.linalg.norm(starts - goals, axis=1).min() >= 1.0
    lines = [arena.path_clearance(np.stack([p.start, p.goal])) for p in problems]
    assert np.mean(np.array(lines) < arena.COLLISION_MARGIN) > 0.5


def test_hover_thrust_is_the_weight() -> None:
    controller = GeometricController()
    controller.command(Setpoint(STILL, STILL, STILL), STILL, STILL, np.eye(3), 0.01)
    motors = controller.motors(np.eye(3), STILL)
    assert motors.sum() == pytest.approx(MASS * GRAVITY)
    drone = Drone(STILL)
    for _ in range(500):
        drone.step(np.full(4, MASS * GRAVITY / 4.0), STILL)
    np.testing.assert_allclose(drone.position, 0.0, atol=1e-9)


def test_mixer_undoes_what_the_motors_do() -> None:
    # Angular acceleration in the physics is the commanded torque over the inertia.
    torque = np.array([2e-4, -3e-4, 5e-5])
    drone = Drone(STILL)
    motors = MIXER @ np.concatenate([[MASS * GRAVITY], torque])
    for _ in range(200):
        drone._data.act[:] = motors  # no motor lag
        drone._data.qvel[:], drone._data.qpos[3:7] = 0.0, [1.0, 0.0, 0.0, 0.0]
        drone.step(motors, STILL)
    np.testing.assert_allclose(drone.rates / PHYSICS_STEP, torque / INERTIA, rtol=0.02)


def fly_to(place: np.ndarray, air: np.ndarray, seconds: float) -> tuple[Drone, GeometricController]:
    """Fly from the origin to a setpoint at rest, with exact sensing."""
    drone, controller = Drone(STILL), GeometricController()
    for step in range(round(seconds / PHYSICS_STEP)):
        if step % 5 == 0:
            setpoint = Setpoint(place, STILL, STILL)
            controller.command(setpoint, drone.position, drone.velocity, drone.rotation, 0.01)
        motors = controller.motors(drone.rotation, drone.rates)
        assert MOTOR_RANGE[0] <= motors.min() <= motors.max() <= MOTOR_RANGE[1]
        drone.step(motors, air)
    return drone, controller


def test_controller_converges_to_a_setpoint_in_wind_and_learns_the_wind() -> None:
    place, air = np.array([0.8, -0.5, 0.4]), np.array([0.8, 0.3, 0.0])
    drone, controller = fly_to(place, air, 6.0)
    np.testing.assert_allclose(drone.position, place, atol=0.005)
    np.testing.assert_allclose(drone.velocity, 0.0, atol=0.01)
    np.testing.assert_allclose(controller.wind, DRAG * air / MASS, atol=0.02)


def test_wind_has_the_stated_spread() -> None:
    air = Air(Wind(steady=0.0, gusts=0.3, gust_seconds=0.05), 0.01, np.random.default_rng(0))
    blown = np.array([air.next() for _ in range(20_000)])
    np.testing.assert_allclose(blown.std(axis=0), [0.3, 0.3, 0.15], rtol=0.08)
    kept = (blown[1:, 0] * blown[:-1, 0]).mean() / blown[:, 0].var()
    assert kept == pytest.approx(np.exp(-0.2), abs=0.02)


def zigzag() -> np.ndarray:
    """A rounded path with sharp turns and a climb, metres."""
    corners = [[0, 0, 0], [1, 0, 0], [1, 1, 0.5], [0.2, 1, 0.5], [0.2, 0.9, 0]]
    return data.rounded(np.array(corners, dtype=np.float64))


def test_runs_are_at_rest_at_both_ends_and_within_bounds() -> None:
    path = zigzag()
    run = data.timed(path)
    np.testing.assert_allclose(run[[0, -1], :3], path[[0, -1]], atol=1e-9)
    np.testing.assert_allclose(run[[0, -1], 3:], 0.0)
    assert np.linalg.norm(run[:, 3:], axis=1).max() <= data.TOP_SPEED + 1e-3
    acceleration = np.linalg.norm(np.diff(run[:, 3:], axis=0), axis=1) / data.FRAME_SECONDS
    assert 1.0 < acceleration.max() <= np.sqrt(2.0) * data.TOP_ACCELERATION + 0.1
    # Velocities are those of the positions.
    moved = np.diff(run[:, :3], axis=0) / data.FRAME_SECONDS
    np.testing.assert_allclose(moved, (run[1:, 3:] + run[:-1, 3:]) / 2.0, atol=0.06)


@pytest.mark.parametrize("metres", [0.0, 1e-4, 0.004])
def test_the_shortest_runs_are_finite(metres: float) -> None:
    run = data.timed(data.rounded(np.array([[0.0, 0.0, 0.0], [metres, 0.0, 0.0]])))
    assert np.isfinite(run).all() and np.abs(run).max() <= 0.03
    np.testing.assert_allclose(run[-1], [metres, 0, 0, 0, 0, 0], atol=1e-12)


def test_setpoints_follow_a_run_and_stay_within_bounds() -> None:
    run = data.timed(zigzag())
    spline = PlanSpline(run, data.FRAME_SECONDS)
    for frame in (0, 7, len(run) - 1):
        place, velocity, _ = spline.at(0.1 * frame)
        np.testing.assert_allclose(place, run[frame, :3], atol=0.01)  # a run is not quite cubic
        np.testing.assert_allclose(velocity, run[frame, 3:], atol=1e-12)
    reference = Reference(run[0, :3])
    reference.follow(spline, 0.0, 1.0)
    for tick in range(1, 101 + 10 * len(run)):
        setpoint = reference.next(0.01)
        assert np.linalg.norm(setpoint.position - spline.at(0.01 * tick)[0]) < 0.03
    np.testing.assert_allclose(setpoint.position, run[-1, :3], atol=1e-3)


def test_a_plan_is_followed_where_positions_and_velocities_fit_best() -> None:
    generator = np.random.default_rng(1)
    run = data.timed(zigzag())
    shaken = run.copy()
    shaken[1:, :3] += 0.01 * generator.standard_normal((len(run) - 1, 3))
    clean, fitted = (PlanSpline(frames, data.FRAME_SECONDS) for frames in (run, shaken))
    at = 0.1 * np.arange(len(run))
    apart = np.array([fitted.at(time)[0] - clean.at(time)[0] for time in at])
    assert np.linalg.norm(apart[0]) < 1e-12
    assert np.sqrt((apart**2).mean()) < 0.005  # half of what the positions were shaken by
    # Least squares: whatever moves one place makes the fit worse.
    places = np.array([fitted.at(time)[0] for time in at])
    slopes = shaken[:, 3:].copy()
    slopes[-1] = 0.0
    moved = 0.05 * (slopes[1:] + slopes[:-1])

    def misfit(tried: np.ndarray) -> float:
        off, gap = tried - shaken[:, :3], np.diff(tried, axis=0) - moved
        return float((off**2).sum() + FIT * (gap**2).sum())

    for frame in (1, 5, len(run) - 1):
        for push in (-1e-3, 1e-3):
            other = places.copy()
            other[frame, generator.integers(3)] += push
            assert misfit(other) > misfit(places)


def test_a_plan_from_rest_is_joined_where_it_leaves() -> None:
    run = data.timed(zigzag())
    spline = PlanSpline(run, data.FRAME_SECONDS)
    joined = spline.leaves()
    assert 0.1 < joined < 0.3
    gone = float(np.linalg.norm(spline.at(joined)[0] - run[0, :3]))
    assert LEFT < gone < LEFT + 0.02
    assert PlanSpline(run[8:], data.FRAME_SECONDS).leaves() == 0.0  # on the move
    assert PlanSpline(np.tile(run[-1], (9, 1)), data.FRAME_SECONDS).leaves() == 0.0  # stays


def test_setpoints_are_bounded_whatever_is_planned() -> None:
    generator = np.random.default_rng(0)
    reference = Reference(STILL)
    last = Setpoint(STILL, STILL, STILL)
    fastest = hardest = 0.0
    for _ in range(20):
        wild = np.cumsum(generator.uniform(-0.6, 0.6, (64, 3)), axis=0)
        frames = np.concatenate([wild, 3.0 * generator.standard_normal((64, 3))], axis=1)
        reference.follow(PlanSpline(frames, 0.1), 0.2, 1.0)
        for _ in range(30):
            setpoint = reference.next(0.01)
            fastest = max(fastest, float(np.linalg.norm(setpoint.velocity)))
            change = np.linalg.norm(setpoint.velocity - last.velocity) / 0.01
            hardest = max(hardest, float(change))
            moved = setpoint.position - last.position
            np.testing.assert_allclose(moved, 0.01 * setpoint.velocity, atol=1e-12)
            last = setpoint
    assert TOP_SPEED - 0.1 < fastest <= TOP_SPEED + 1e-9
    assert TOP_ACCELERATION - 0.1 < hardest <= TOP_ACCELERATION + 1e-9


def test_damping_slows_down_along_the_same_path() -> None:
    line = np.linspace([0.0, 0.0, 0.0], [3.2, 0.0, 0.0], 64)
    speed = 3.2 / 6.3
    frames = np.concatenate([line, np.tile([speed, 0.0, 0.0], (64, 1))], axis=1)
    spline = PlanSpline(frames, 0.1)
    places = []
    for factor in (1.0, 0.5):
        reference = Reference(STILL)
        reference.follow(spline, 0.0, factor)
        places.append([reference.next(0.01).position for _ in range(200)][-1])
    assert places[0] == pytest.approx([2.0 * speed, 0.0, 0.0], abs=0.01)
    assert places[1] == pytest.approx([1.0 * speed, 0.0, 0.0], abs=0.01)


def test_outlines_lie_on_surfaces_and_show_every_edge() -> None:
    lines = arena.outlines()
    assert len(lines) == 12 * (1 + len(arena.BOXES)) + len(arena.CYLINDERS)
    edges, centre, half = np.array(lines[12:24]), arena.BOXES[0, :3], arena.BOXES[0, 3:]
    np.testing.assert_allclose(np.abs(edges - centre), np.tile(half, (12, 2, 1)))
    steps = (np.abs(np.diff(edges, axis=1)) > 1e-9).sum(axis=-1)
    assert (steps == 1).all()  # along edges, never across a face
    ends = {frozenset(map(tuple, np.round(edge, 6).tolist())) for edge in edges}
    assert len(ends) == 12
    x, y, radius = arena.CYLINDERS[0]
    pillar = lines[-len(arena.CYLINDERS)]
    np.testing.assert_allclose(np.hypot(pillar[:, 0] - x, pillar[:, 1] - y), radius)


def test_recorded_runs_are_free_bounded_and_reproducible() -> None:
    pytest.importorskip("ompl")
    pairs = [data.make_runs(7, index) for index in range(8)]
    for run in [run for pair in pairs for run in pair]:
        # Only the start may be closer than routes lead, and the way is out from there.
        assert arena.path_clearance(run[:, :3]) >= 0.11
        assert arena.path_clearance(run[8:, :3]) >= data.SMALLEST_CLEARANCE
        assert data.SMALLEST_CLEARANCE > arena.COLLISION_MARGIN
        assert np.linalg.norm(run[:, 3:], axis=1).max() <= data.TOP_SPEED + 1e-3
        np.testing.assert_allclose(run[-1, 3:], 0.0)
        assert len(run) <= data.HORIZON
    # Out of order, in the same process: a run is a function of its seed and index.
    for index in (5, 2):
        for again, before in zip(data.make_runs(7, index), pairs[index], strict=True):
            np.testing.assert_array_equal(again, before)


def test_the_check_made_for_ompl_agrees_with_the_clearance() -> None:
    generator = np.random.default_rng(3)
    points = generator.uniform(-1.1 * arena.HALF_SIZE, 1.1 * arena.HALF_SIZE, (500, 3))
    free = arena.clearance(points) >= arena.WORKSPACE_MARGIN
    assert [data._is_free(point) for point in points] == free.tolist()
    assert 50 < free.sum() < 450
