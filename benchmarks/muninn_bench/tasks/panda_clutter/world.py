"""The clutter: boxes around the arm, what touches what, and what is near.

Joints are radians, (7,). A box is its centre and half sizes along the axes, metres, (6,).
The truth about collisions is MuJoCo's, of the robot's convex parts with the boxes, the floor and
each other. Paths are checked densely enough that no box is missed: see :data:`STEP`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.panda_clutter.robot import (
    MOST_BOXES,
    ROBOT,
    load_model,
    reaches,
)

STEP = 0.01
"""Metres that no point of the arm exceeds between two checked configurations of a path.

A point moves by at most ``sum_i reach_i |change of joint i|``, see :func:`robot.reaches`; segments
are divided until this is at most STEP. At any time every point is then within STEP / 2 of its place
in a checked configuration, so whatever goes unseen is at most 5 mm deep in a box; the middle of the
thinnest box (4 cm) is 20 mm deep. A fixed step in joint space needs care instead: OMPL's 0.0016 of
the space's extent is 0.0208 rad, for which a point may move by 4.2 cm, more than a box is thick.
"""

ROOM = 0.01
"""Metres between the robot and every box at the start and at the goal, and along expert paths."""

SIGHT = 0.2
"""Metres beyond which a clearance is not measured, but reported as this."""


class Clutter:
    """The robot among some boxes, (count, 6); there are ten at most.

    Raises:
        InputError: too many boxes, or a box without a size.
    """

    def __init__(self, boxes: FloatArray) -> None:
        self.boxes = np.array(boxes, dtype=np.float64).reshape(-1, 6)
        if len(self.boxes) > MOST_BOXES:
            raise InputError(f"a scene holds {MOST_BOXES} boxes at most, got {len(self.boxes)}")
        if not np.isfinite(self.boxes).all() or (self.boxes[:, 3:] <= 0.0).any():
            bad = next(
                n
                for n, box in enumerate(self.boxes)
                if not np.isfinite(box).all() or min(box[3:]) <= 0
            )
            raise InputError(
                f"box {bad} is {self.boxes[bad].tolist()}; a box is centre and half sizes, six "
                "finite numbers, and half sizes are above 0"
            )

    def touches(self, joints: Sequence[float] | FloatArray, margin: float = 0.0) -> bool:
        """Whether the robot touches anything, or is closer than a margin to boxes or the floor."""
        simulator = _simulator()
        simulator.furnish(self, margin)
        return simulator.contacts(joints) > 0

    def touched(self, joints: FloatArray) -> list[str]:
        """Names of the pairs that touch: ``link5 and box3``."""
        simulator = _simulator()
        simulator.furnish(self, 0.0)
        simulator.contacts(joints)
        return simulator.pairs()

    def free(self, path: FloatArray, margin: float = 0.0, step: float = STEP) -> bool:
        """Whether a path (waypoints, 7) touches nothing, along the straight ways in joint space.

        With a margin of at least ``step / 2`` nothing is touched between checked configurations
        either, but for the robot by itself.
        """
        simulator = _simulator()
        simulator.furnish(self, margin)
        dense = subdivided(path, step)
        # Coarse first: a path that is blocked is mostly blocked along a stretch of it.
        return not any(
            simulator.contacts(joints)
            for first, stride in _PASSES
            for joints in dense[first::stride]
        )

    def distance(self, joints: Sequence[float] | FloatArray) -> float:
        """Metres between the moving robot and the nearest box; SIGHT if it is farther.

        Negative in a box: then it is how deep, to about a millimetre.
        """
        simulator = _simulator()
        simulator.furnish(self, 0.0)
        return simulator.distance(joints, len(self.boxes))

    def clearance(self, path: FloatArray, step: float = STEP) -> float:
        """The smallest distance along a path (waypoints, 7), to about a step."""
        dense, smallest, at = subdivided(path, step), SIGHT, 0
        while at < len(dense):
            distance = self.distance(dense[at])
            # No point moves more than a step at a time: the next ones are no closer than this.
            at += max(1, int((distance - smallest) / step))
            smallest = min(smallest, distance)
        return smallest

    def near_base(self, margin: float = ROOM) -> list[int]:
        """Boxes that are closer than a margin to the robot's base, which never moves."""
        simulator = _simulator()
        simulator.furnish(self, 0.0)
        distances = simulator.from_base(len(self.boxes), margin + 0.1)
        return [int(box) for box in np.flatnonzero(distances < margin)]


def subdivided(path: FloatArray, step: float = STEP) -> FloatArray:
    """A path (waypoints, 7) with configurations between, (more, 7): see :data:`STEP`."""
    ways = np.diff(path, axis=0)
    counts = np.maximum(np.ceil(np.abs(ways) @ reach() / step), 1).astype(int)
    last = np.cumsum(counts)
    part = np.arange(1, last[-1] + 1 if len(last) else 1) - np.repeat(last - counts, counts)
    share = part / np.repeat(counts, counts)
    between = np.repeat(path[:-1], counts, axis=0) + share[:, None] * np.repeat(
        ways, counts, axis=0
    )
    return np.concatenate([path[:1], between])


def reach() -> FloatArray:
    """How far a radian of each joint moves a point of the arm at most, metres, (7,)."""
    found: FloatArray = _simulator().reaches
    return found


class _Simulator:
    """This process's model, with the boxes that were asked for last."""

    def __init__(self) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, load_model()
        self._data = mujoco.MjData(self._model)
        self.reaches = reaches(self._model)
        self._boxes = [self._model.geom(f"box{number}").id for number in range(MOST_BOXES)]
        self._scenery = [self._model.geom("floor").id, *self._boxes]
        link = self._model.body("link0").id
        robot = np.flatnonzero(self._model.geom_contype == ROBOT)
        (self._base,) = (int(geom) for geom in robot if self._model.geom_bodyid[geom] == link)
        self._moving = [int(geom) for geom in robot if geom != self._base]
        self._clutter: Clutter | None = None
        self._margin = 0.0

    def furnish(self, clutter: Clutter, margin: float) -> None:
        """Put the boxes in place; contacts count from this distance."""
        if clutter is not self._clutter:
            self._clutter = clutter
            self._data.mocap_pos[:] = (0.0, 0.0, -10.0)
            self._data.mocap_pos[: len(clutter.boxes)] = clutter.boxes[:, :3]
            for geom, box in zip(self._boxes, clutter.boxes, strict=False):
                self._resize(geom, box[3:])
        if margin != self._margin:
            self._margin = margin
            self._model.geom_margin[self._scenery] = margin
            self._model.body_margin[self._model.geom_bodyid[self._scenery]] = margin

    def _resize(self, geom: int, half_sizes: FloatArray) -> None:
        """A box and the bounds that MuJoCo's broad phase keeps of it."""
        model = self._model
        model.geom_size[geom] = half_sizes
        model.geom_rbound[geom] = np.linalg.norm(half_sizes)
        model.geom_aabb[geom, 3:] = half_sizes
        model.bvh_aabb[model.body_bvhadr[model.geom_bodyid[geom]], 3:] = half_sizes

    def contacts(self, joints: Sequence[float] | FloatArray) -> int:
        """How many there are; as fast as MuJoCo is."""
        data = self._data
        data.qpos[:] = joints
        self._mujoco.mj_kinematics(self._model, data)
        self._mujoco.mj_collision(self._model, data)
        return int(data.ncon)

    def pairs(self) -> list[str]:
        """Names of the bodies in contact."""
        bodies = self._model.geom_bodyid[self._data.contact.geom[: self._data.ncon]]
        names = {tuple(self._model.body(body).name for body in pair) for pair in bodies}
        return sorted(" and ".join(sorted(pair, reverse=True)) for pair in names)

    def distance(self, joints: Sequence[float] | FloatArray, count: int) -> float:
        """Metres between what moves of the robot and the nearest of so many boxes.

        Not the contacts' own distances, which are wrong by centimetres where margins are large.
        """
        self._data.qpos[:] = joints
        self._mujoco.mj_kinematics(self._model, self._data)
        smallest = SIGHT
        for box in self._boxes[:count]:
            for part in self._moving:
                found = self._mujoco.mj_geomDistance(
                    self._model, self._data, part, box, smallest, None
                )
                smallest = min(smallest, found)
        return float(smallest)

    def from_base(self, count: int, farthest: float) -> FloatArray:
        """Metres between the base and each box; MuJoCo reports no contacts of what cannot move."""
        self._mujoco.mj_kinematics(self._model, self._data)
        return np.array(
            [
                self._mujoco.mj_geomDistance(
                    self._model, self._data, self._base, box, farthest, None
                )
                for box in self._boxes[:count]
            ]
        )


@cache
def _simulator() -> _Simulator:
    return _Simulator()


_PASSES = ((0, 16), (8, 16), (4, 8), (2, 4), (1, 2))
"""First index and stride of passes over a path that together visit every index once."""
