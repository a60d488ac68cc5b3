"""The Crazyflie planner's training data.

Routes come from OMPL (RRT-Connect in R^3, the shortest of several attempts after shortcutting), are
relaxed as elastic bands, which keep well clear of obstacles where there is room, rounded in space,
and timed within bounds on speed and acceleration; each is flown there and back. A route is a
polyline of metres, (points, 3); a run is positions and velocities at equal times, (frames, 6).

Most runs lead from one place of the workspace to another. A share is short, down to nothing, which
is what correcting a hover looks like; a share begins on the move, in whatever direction, which is
what a robot looks like that was pushed, or has changed its mind; and a share begins closer to an
obstacle than any route leads, which is where a pushed robot must find its way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.crazyflie import arena
from muninn_bench.tasks.paths import arc_lengths, resample, smooth
from muninn_bench.tasks.paths import timed as fastest
from muninn_bench.tasks.recorded import Recording

FRAME_SECONDS = 0.1  # between two frames of a run, and of a plan
HORIZON = 72  # frames of a plan; a run that does not fit, one in a hundred, is not recorded
TOP_SPEED = 1.8  # of a run, m/s
TOP_ACCELERATION = 2.5  # of a run along and, separately, across its path, m/s^2
CORNER_ROUNDING = 0.12  # standard deviation of the Gaussian along the path, metres
TIME_ROUNDING = 0.06  # standard deviation of the Gaussian in time, seconds
_ARC_STEP = 0.01
_TIME_STEP = 0.01
SMALLEST_CLEARANCE = 0.18  # of a recorded run, metres: rounding a corner cuts it a little
CLOSEST_START = 0.115  # of a start close to an obstacle, metres: all but a collision
SHORT_SHARE, MOVING_SHARE, CLOSE_SHARE = 0.15, 0.2, 0.15
ATTEMPTS = 3
_OUT_CLEARANCE = 0.11
_SHORTCUTS = 40
_BAND_CLEARANCE, _BAND_SPACING, _BAND_ROUNDS = 0.45, 0.05, 60
_SEARCH_SECONDS = 5.0


def find_route(start: FloatArray, goal: FloatArray, seed: int) -> FloatArray:
    """A short collision-free polyline (points, 3), by OMPL; a function of its arguments.

    Raises:
        InputError: OMPL is not installed.
    """
    try:
        from ompl import base, geometric, util
    except ImportError as error:
        raise InputError("routes need OMPL: pip install 'muninn-bench[fly]'") from error

    util.setLogLevel(util.LogLevel.LOG_NONE)
    # Generators made from here on are seeded by this; everything below is made anew per call.
    util.RNG.setSeed(seed % 2**31 + 1)
    space = base.RealVectorStateSpace(3)
    bounds = base.RealVectorBounds(3)
    for axis, half in enumerate(arena.HALF_SIZE):
        bounds.setLow(axis, -float(half))
        bounds.setHigh(axis, float(half))
    space.setBounds(bounds)
    setup = geometric.SimpleSetup(space)
    setup.setStateValidityChecker(_is_free)
    # Inflated obstacles are 0.8 m thick and more; the finished route is checked closely.
    setup.getSpaceInformation().setStateValidityCheckingResolution(0.01)
    ends = []
    for place in (start, goal):
        state = space.allocState()
        for axis in range(3):
            state[axis] = float(place[axis])
        ends.append(state)
    generator = np.random.default_rng(seed)
    routes: list[FloatArray] = []
    while len(routes) < ATTEMPTS:
        setup.clear()
        planner = geometric.RRTConnect(setup.getSpaceInformation())
        planner.setRange(1.0)
        setup.setPlanner(planner)
        setup.setStartAndGoalStates(*ends)
        setup.solve(_SEARCH_SECONDS)
        if setup.haveExactSolutionPath():
            states = setup.getSolutionPath().getStates()
            found = np.array([[state[axis] for axis in range(3)] for state in states])
            routes.append(_shortened(found, generator))
    return min(routes, key=lambda route: np.linalg.norm(np.diff(route, axis=0), axis=1).sum())


def make_runs(seed: int, index: int) -> tuple[FloatArray, FloatArray]:
    """Runs there and back: frames (x, y, z, vx, vy, vz), metres and m/s, (frames, 6), to rest."""
    generator = np.random.default_rng([seed, index])
    kind = generator.random()
    while True:
        problem = arena.draw_problem(
            generator, 0.0 if kind < SHORT_SHARE else arena.SMALLEST_DISTANCE
        )
        places = [problem.start, problem.goal]
        begin = None
        if kind < SHORT_SHARE:
            direction = generator.standard_normal(3)
            reach = generator.random() * direction / np.linalg.norm(direction)
            places[1] = problem.start + reach
            if arena.clearance(places[1]) < arena.WORKSPACE_MARGIN:
                continue
        elif kind < SHORT_SHARE + MOVING_SHARE:
            places.insert(1, arena.draw_place(generator))
        elif kind < SHORT_SHARE + MOVING_SHARE + CLOSE_SHARE:
            begin = arena.draw_place(generator, CLOSEST_START)
            places[0] = pushed_out(begin)
            if (
                arena.clearance(begin) > arena.WORKSPACE_MARGIN
                or arena.clearance(places[0]) < arena.WORKSPACE_MARGIN
            ):
                continue
        legs = [find_route(*pair, seed=int(generator.integers(2**31))) for pair in pairwise(places)]
        legs = [relaxed(leg) for leg in legs]
        path = rounded(np.concatenate([legs[0], *(leg[1:] for leg in legs[1:])]))
        # The bounds are the same both ways, and a search costs ten times what timing does.
        there, back = timed(path), timed(path[::-1])
        least = SMALLEST_CLEARANCE
        if begin is not None:
            there = timed(rounded(relaxed(np.concatenate([begin[None], legs[0]]))))
            least = _OUT_CLEARANCE
        if len(legs) == 2:
            # At most 0.6 m before the turn: earlier, the way round it would look wanted.
            before = 0.6 * generator.random()
            there, back = (_from_before(run, places[1], before) for run in (there, back))
        if (
            max(len(there), len(back)) <= HORIZON
            and arena.path_clearance(there[:, :3]) >= least
            and arena.path_clearance(back[:, :3]) >= SMALLEST_CLEARANCE
        ):
            return there, back


def pushed_out(place: FloatArray) -> FloatArray:
    """Where the way straight out from the nearest obstacle is clear enough for a route, (3,)."""
    place = place.copy()
    for _ in range(30):
        around = arena.clearance(place + _AROUND)
        if around.mean() >= arena.WORKSPACE_MARGIN + 0.02:
            break
        place += 0.02 * (around[::2] - around[1::2]) / (2.0 * _REACH)
    return place


def relaxed(route: FloatArray) -> FloatArray:
    """The route as an elastic band: contracted, and pushed away from close obstacles.

    Shortest routes touch the margins of what they pass, so that a robot a little off is in them;
    and routes that were shortened at random differ where nothing distinguishes them, which a
    planner cannot learn.
    """
    band = resample(route, _BAND_SPACING, 3)
    for _ in range(_BAND_ROUNDS):
        inner = band[1:-1]
        inner += 0.25 * (band[:-2] + band[2:] - 2.0 * inner)
        around = arena.clearance(inner + _AROUND[:, None])
        slope = (around[::2] - around[1::2]).T / (2.0 * _REACH)
        lack = np.maximum(_BAND_CLEARANCE - around.mean(axis=0), 0.0)
        inner += 0.2 * lack[:, None] * slope
    return band


def rounded(route: FloatArray) -> FloatArray:
    """The route with rounded corners, at equal spacing; both ends stay in place."""
    path = smooth(resample(route, _ARC_STEP, 3), CORNER_ROUNDING / _ARC_STEP)
    # Three at least: a point in the middle is where the speed is not zero.
    return resample(path, _ARC_STEP, 3)


def timed(path: FloatArray) -> FloatArray:
    """A run along a rounded path, as fast as the bounds allow: (frames, 6).

    The first and the last frame are at rest on the path's ends.
    """
    bounds = (TOP_SPEED, TOP_ACCELERATION, TOP_ACCELERATION)
    position = fastest(path, *bounds, _TIME_STEP, TIME_ROUNDING)
    velocity = np.gradient(position, _TIME_STEP, axis=0)
    velocity[[0, -1]] = 0.0
    frames = np.concatenate([position, velocity], axis=1)[:: round(FRAME_SECONDS / _TIME_STEP)]
    return np.concatenate([frames, [[*path[-1], 0.0, 0.0, 0.0]]])


def _from_before(run: FloatArray, place: FloatArray, metres: float) -> FloatArray:
    """The part of a run that begins at most that far before it passes a place."""
    away = np.linalg.norm(run[:, :3] - place, axis=1)
    farther = np.flatnonzero(away[: int(away.argmin()) + 1] > metres)
    return run[farther[-1] if len(farther) else 0 :]


def _is_free(state: Sequence[float]) -> bool:
    """Whether a route may lead through a state of OMPL's."""
    place = np.array([state[0], state[1], state[2]])
    return bool(arena.clearance(place) >= arena.WORKSPACE_MARGIN)


_REACH = 0.01
_AROUND = _REACH * np.repeat(np.eye(3), 2, axis=0) * np.array([1.0, -1.0] * 3)[:, None]
"""Small steps forth and back along each axis, (6, 3)."""


def _shortened(route: FloatArray, generator: np.random.Generator) -> FloatArray:
    """The route with random shortcuts between points on it, where they are free."""
    share = np.linspace(0.0, 1.0, 41)[:, None]
    for _ in range(_SHORTCUTS):
        if len(route) < 3:
            break
        arc = arc_lengths(route)
        first, last = np.sort(generator.uniform(0.0, arc[-1], 2))
        if generator.random() < 0.3:
            # Vertices too, or the ends of the route would keep their corners.
            first, last = np.sort(generator.choice(arc, 2, replace=False))
        points = np.stack([np.interp([first, last], arc, route[:, a]) for a in range(3)], axis=1)
        if (
            arena.clearance(points[0] + share * (points[1] - points[0])).min()
            >= arena.WORKSPACE_MARGIN
        ):
            route = np.concatenate([route[arc < first], points, route[arc > last]])
    return route


RECORDING = Recording("crazyflie", make_runs, 50_000, FRAME_SECONDS, 3, 6, each=2)
