"""Problems among boxes, and how a path between their ends is judged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.panda_clutter.robot import JOINTS, LIMITS
from muninn_bench.tasks.panda_clutter.world import ROOM, Clutter

GOAL_RADIUS = 0.05
"""A path ends at its goal if every joint does within this, radians."""

CENTRES = np.array([[0.25, -0.35, 0.05], [0.75, 0.35, 0.55]])
"""Lowest and highest centre of a box, metres."""

SIDES = (0.04, 0.12)
"""Least and largest side of a box, metres."""

_LOOK = 0.04  # density of the check that a problem's straight way is blocked, as STEP
_LIMIT_SLACK = 1e-5  # rounding of plans in 32 bits, radians


class Problem(NamedTuple):
    """Where to go from, (7,), and to, (7,), among which boxes, (count, 6)."""

    start: FloatArray
    goal: FloatArray
    boxes: FloatArray


class Judgement(NamedTuple):
    """What became of a path.

    Attributes:
        success: free of collisions, within the joint limits, ends at the goal.
        collision: it touches a box, the floor or the robot itself.
        length: of the path in joint space, radians.
        smoothness: mean over waypoints of the squared second difference's sum over joints, rad^2.
        clearance: smallest distance between the robot and a box, metres; negative in collision.
    """

    success: bool
    collision: bool
    length: float
    smoothness: float
    clearance: float


def draw_problem(generator: np.random.Generator, boxes: int) -> Problem:
    """A problem with so many boxes, of which one at least is in the straight way.

    Start and goal are uniform within the limits where the robot touches neither itself nor the
    floor, nor on the straight way between them. Boxes have sides of 4 to 12 cm and their centres
    before the robot; one that is closer than ROOM to the robot at start or goal, or to its base, is
    drawn again; and all is drawn again until the straight way in joint space touches a box.
    """
    empty = Clutter(np.zeros((0, 6)))
    while True:
        start, goal = _draw_pose(generator, empty), _draw_pose(generator, empty)
        way = np.stack([start, goal])
        if not empty.free(way, step=_LOOK):
            continue
        drawn = np.array([_draw_box(generator, way) for _ in range(boxes)])
        if not Clutter(drawn).free(way, step=_LOOK):
            return Problem(start, goal, drawn)


def require_fit(problem: Problem) -> None:
    """Refuse what no path can solve.

    Raises:
        InputError: start or goal is beyond a limit or touches something, or a box is in the base.
    """
    clutter = Clutter(problem.boxes)
    if inside := clutter.near_base(0.0):
        raise InputError(
            f"box {inside[0]}, {clutter.boxes[inside[0]].tolist()}, touches the robot's base; move "
            f"it away, to a centre between {CENTRES[0].tolist()} and {CENTRES[1].tolist()} for one"
        )
    for name, joints in (("start", problem.start), ("goal", problem.goal)):
        if not _within(joints):
            raise InputError(
                f"the {name} is {np.round(joints, 4).tolist()} rad; the joints go from "
                f"{LIMITS[:, 0].tolist()} to {LIMITS[:, 1].tolist()}: choose angles between"
            )
        if touched := clutter.touched(joints):
            raise InputError(
                f"the {name} is in collision: {', '.join(touched)}; move the boxes or choose "
                "another pose"
            )


def judge(problem: Problem, path: FloatArray) -> Judgement:
    """What becomes of a path (waypoints, 7) that the robot follows from the start.

    Raises:
        InputError: the path has another shape, or holds values that are not finite.
    """
    if path.ndim != 2 or path.shape[1] != JOINTS or not len(path):
        raise InputError(f"a path is (waypoints, {JOINTS}), at least one; got {path.shape}")
    if not np.isfinite(path).all():
        bad = int(np.flatnonzero(~np.isfinite(path).all(axis=1))[0])
        raise InputError(f"waypoint {bad} of the path is not finite; a robot cannot go there")
    way = np.concatenate([problem.start[None], path])
    clutter = Clutter(problem.boxes)
    collision = not clutter.free(way)
    arrived = (np.abs(path[-1] - problem.goal) <= GOAL_RADIUS).all()
    bends = np.diff(path, 2, axis=0)
    return Judgement(
        success=bool(not collision and _within(path) and arrived),
        collision=collision,
        length=float(np.linalg.norm(np.diff(way, axis=0), axis=1).sum()),
        smoothness=float((bends**2).sum(axis=1).mean()) if len(bends) else 0.0,
        clearance=clutter.clearance(way),
    )


def _draw_pose(generator: np.random.Generator, empty: Clutter) -> FloatArray:
    while True:
        joints: FloatArray = generator.uniform(*LIMITS.T)
        if not empty.touches(joints, ROOM):
            return joints


def _draw_box(generator: np.random.Generator, ends: FloatArray) -> FloatArray:
    while True:
        box = np.concatenate([generator.uniform(*CENTRES), generator.uniform(*SIDES, 3) / 2.0])
        clutter = Clutter(box)
        if not any(clutter.touches(joints, ROOM) for joints in ends) and not clutter.near_base():
            return box


def _within(joints: FloatArray) -> bool:
    """Whether angles (..., 7) are finite and within the limits, but for rounding."""
    low, high = LIMITS[:, 0] - _LIMIT_SLACK, LIMITS[:, 1] + _LIMIT_SLACK
    return bool(((joints >= low) & (joints <= high)).all())
