"""What planners learn from: expert paths of problems with 3, 6 and 10 boxes, joints alone.

Boxes never enter a network, so none are recorded. A path has 64 waypoints at equal arc lengths in
joint space: the planners' tasks have no clock, and of the time along a path nothing is to be
learned. Waypoints at equal distances also make a plan's density, with which collisions are avoided
between them, the best that 64 can give.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.panda_clutter.expert import find_path
from muninn_bench.tasks.panda_clutter.problem import Problem, draw_problem
from muninn_bench.tasks.panda_clutter.robot import JOINTS
from muninn_bench.tasks.recorded import Recording

BOXES = {"easy": 3, "medium": 6, "hard": 10}
"""In a scene, by difficulty; runs take turns."""

MOST_DRAWS = 20
"""Problems of a run: one that the expert does not solve is replaced by another."""

FRAME_SECONDS = 0.05  # a name for a step: paths have no clock


class Run(NamedTuple):
    """A problem, the expert's path (64, 7), and how many problems before it were given up."""

    problem: Problem
    path: FloatArray
    redrawn: int


def make_run(seed: int, index: int) -> Run:
    """Run ``index``: a function of its arguments.

    Raises:
        InputError: the expert solved none of MOST_DRAWS problems, or a package is missing.
    """
    generator = np.random.default_rng([seed, index])
    boxes = tuple(BOXES.values())[index % len(BOXES)]
    for redrawn in range(MOST_DRAWS):
        problem = draw_problem(generator, boxes)
        path = find_path(problem, int(generator.integers(2**31)))
        if path is not None:
            return Run(problem, path, redrawn)
    raise InputError(
        f"the expert solved none of {MOST_DRAWS} problems with {boxes} boxes for run {index} of "
        f"seed {seed}: each timed out, or left no room to round corners. Try another seed, and "
        "check the installed versions of mujoco and ompl"
    )


def make_runs(seed: int, index: int) -> list[FloatArray]:
    """The path of a run, (64, 7), radians."""
    return [make_run(seed, index).path]


RECORDING = Recording("panda-clutter", make_runs, 24_000, FRAME_SECONDS, JOINTS, JOINTS)
