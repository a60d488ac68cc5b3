"""The expert: OMPL's RRT-Connect in joint space, shortcuts, and rounded corners.

Everywhere the robot keeps ROOM away from boxes and floor, and ways are checked so densely that no
point of the arm moves more than twice that between two checks: what is free for the expert is free
at every density.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.panda_clutter.problem import Problem, require_fit
from muninn_bench.tasks.panda_clutter.robot import JOINTS, LIMITS
from muninn_bench.tasks.panda_clutter.world import ROOM, Clutter, reach
from muninn_bench.tasks.paths import arc_lengths, resample, smooth

HORIZON = 64
"""Waypoints of a path, at equal arc lengths in joint space."""

MARGINS = (0.03, 0.02, ROOM)
"""Metres kept from boxes and floor while searching: the first that start and goal allow and that
leads to a path. Rounding corners needs some of it."""

ATTEMPTS = 3
"""Searches with a margin, of which the shortest is kept: a single one often goes the long way."""

MOST_CHECKS = 50_000
"""Of configurations in one search, about a second. A clock instead would make data depend on the
machine."""

_RANGE = 1.0  # of the trees' steps, radians
_DENSITY = 2.0 * ROOM  # metres between two checks
_FIRST_SHORTCUTS, _SHORTCUTS = 15, 45  # of every attempt, then of the shortest
_FINE = 8 * HORIZON
_ROUNDINGS = (0.06, 0.03, 0.015, 0.0075)  # standard deviations of the Gaussian, shares of the path


def find_path(problem: Problem, seed: int, most: int = MOST_CHECKS) -> FloatArray | None:
    """A short and smooth path, (HORIZON, 7), from start to goal: a function of its arguments.

    None where no search finds one in ``most`` checks, as where the goal cannot be reached, or where
    what is found leaves no room to round its corners.

    Raises:
        InputError: start or goal is in collision, a box in the base, or OMPL is not installed.
    """
    require_fit(problem)
    clutter, generator = Clutter(problem.boxes), np.random.default_rng(seed)
    for margin in MARGINS:
        if any(clutter.touches(joints, margin) for joints in problem[:2]):
            continue
        found = []
        for _ in range(ATTEMPTS):
            route = search(problem, margin, int(generator.integers(1, 2**31)), most)
            if route is None:
                break  # so will the next, after as many checks
            found.append(_shortened(route, clutter, margin, generator, _FIRST_SHORTCUTS))
        if found:
            shortest = min(found, key=lambda each: arc_lengths(each)[-1])
            route = _shortened(shortest, clutter, margin, generator, _SHORTCUTS)
            if (path := _rounded(route, clutter)) is not None:
                return path
    return None


def search(
    problem: Problem, margin: float, seed: int, most: int = MOST_CHECKS
) -> FloatArray | None:
    """RRT-Connect's route, (points, 7), a margin away from boxes and floor.

    None if there is none after so many checks.

    Raises:
        InputError: OMPL is not installed.
    """
    try:
        from ompl import base, geometric, util
    except ImportError as error:
        raise InputError("the expert needs OMPL: pip install 'muninn-bench[arm]'") from error

    util.setLogLevel(util.LogLevel.LOG_NONE)
    # Generators made from here on are seeded by this; everything below is made anew per call.
    util.RNG.setSeed(seed)
    space = base.RealVectorStateSpace(JOINTS)
    bounds = base.RealVectorBounds(JOINTS)
    for joint, (low, high) in enumerate(LIMITS):
        bounds.setLow(joint, float(low))
        bounds.setHigh(joint, float(high))
    space.setBounds(bounds)
    setup = geometric.SimpleSetup(space)
    clutter, checks = Clutter(problem.boxes), 0

    def is_free(state: Sequence[float]) -> bool:
        nonlocal checks
        checks += 1
        return not clutter.touches([state[joint] for joint in range(JOINTS)], margin)

    setup.setStateValidityChecker(is_free)
    # By Cauchy and Schwarz a way of r radians moves no point farther than r |reach|.
    resolution = _DENSITY / float(np.linalg.norm(reach())) / space.getMaximumExtent()
    setup.getSpaceInformation().setStateValidityCheckingResolution(resolution)
    ends = []
    for joints in (problem.start, problem.goal):
        state = space.allocState()
        for joint in range(JOINTS):
            state[joint] = float(joints[joint])
        ends.append(state)
    planner = geometric.RRTConnect(setup.getSpaceInformation())
    planner.setRange(_RANGE)
    setup.setPlanner(planner)
    setup.setStartAndGoalStates(*ends)
    setup.solve(base.PlannerTerminationCondition(lambda: checks >= most))
    if not setup.haveExactSolutionPath():
        return None
    states = setup.getSolutionPath().getStates()
    return np.array([[state[joint] for joint in range(JOINTS)] for state in states])


def _shortened(
    route: FloatArray,
    clutter: Clutter,
    margin: float,
    generator: np.random.Generator,
    shortcuts: int,
) -> FloatArray:
    """The route after so many tries of random shortcuts between points on it."""
    for _ in range(shortcuts):
        if len(route) < 3:
            break
        arc = arc_lengths(route)
        first, last = np.sort(generator.uniform(0.0, arc[-1], 2))
        if generator.random() < 0.3:
            # Vertices too, or the ends of the route would keep their corners.
            first, last = np.sort(generator.choice(arc, 2, replace=False))
        points = np.stack(
            [np.interp([first, last], arc, route[:, joint]) for joint in range(JOINTS)], axis=1
        )
        if clutter.free(points, margin, _DENSITY):
            route = np.concatenate([route[arc < first], points, route[arc > last]])
    return route


def _rounded(route: FloatArray, clutter: Clutter) -> FloatArray | None:
    """The route with corners as round as they can be, (HORIZON, 7); None if it is not free."""
    fine = resample(route, math.inf, _FINE)
    for share in _ROUNDINGS:
        path = resample(smooth(fine, share * _FINE), math.inf, HORIZON)
        if clutter.free(path, ROOM, _DENSITY):
            return path
    return None
