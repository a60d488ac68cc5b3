"""Meta-World ``pick-place-v3``: pick up a puck, carry it to a goal in the air.

The goal is part of the observation (Meta-World's goal-observable setting; hidden, it would be
zeros, and no policy could solve the task). The hand always starts at the same place; a
problem is where the puck lies and where it is to go.
"""

from __future__ import annotations

import pickle

import numpy as np
from numpy.typing import NDArray

from muninn.model.schedule import FloatArray

DATA = 0
"""Stream of the data's problems; those of the task are in ``muninn_bench.tasks.metaworld.task``."""

ACTION = 4

STEP_LIMIT = 200
"""Steps after which an episode has failed. The environment allows 500, the expert needs 53."""

_PUCK_LOW, _PUCK_HIGH = (-0.1, 0.6, 0.02), (0.1, 0.7, 0.02)
_GOAL_LOW, _GOAL_HIGH = (-0.1, 0.8, 0.05), (0.1, 0.9, 0.3)
_LEAST_DISTANCE = 0.15  # between puck and goal, seen from above; the environment's own rule


def draw_problem(stream: int, index: int) -> FloatArray:
    """Puck and goal, (6,), in metres: a function of stream and index alone.

    They are drawn as the environment draws them, uniformly within its limits.

    >>> np.array_equal(draw_problem(2, 3), draw_problem(2, 3))
    True
    """
    generator = np.random.default_rng([stream, index])
    while True:
        problem = generator.uniform((*_PUCK_LOW, *_GOAL_LOW), (*_PUCK_HIGH, *_GOAL_HIGH))
        if np.linalg.norm(problem[:2] - problem[3:5]) >= _LEAST_DISTANCE:
            return problem


class PickPlace:
    """The environment, with problems of our own and the goal visible.

    Raises:
        ImportError: Meta-World is not installed; requirements-lerobot.txt pins it.
    """

    def __init__(self) -> None:
        from metaworld.envs.sawyer_pick_place_v3 import (  # type: ignore[import-not-found]
            SawyerPickPlaceEnvV3,
        )

        self._class = SawyerPickPlaceEnvV3
        self._environment = SawyerPickPlaceEnvV3()

    def reset(self, problem: FloatArray) -> FloatArray:
        """Begin an episode; the first observation, (39,)."""
        from metaworld.types import Task  # type: ignore[import-not-found]

        # set_task is Meta-World's way to fix a problem; it takes its content pickled.
        content = {"env_cls": self._class, "rand_vec": problem, "partially_observable": False}
        self._environment.set_task(Task("pick-place-v3", pickle.dumps(content)))
        observation: FloatArray = self._environment.reset()[0]
        return observation

    def step(self, action: NDArray[np.floating]) -> tuple[FloatArray, bool]:
        """Act, (4,): displacement in centimetres along x, y, z, and effort to close the gripper.

        Returns:
            The next observation, and the environment's own success signal: the puck is within
            7 cm of the goal.
        """
        # The environment clips displacements itself, but not the effort.
        within = np.clip(action, -1.0, 1.0).astype(np.float32)
        observation, _, _, _, info = self._environment.step(within)
        return observation, bool(info["success"])


def expert_action(observation: FloatArray) -> FloatArray:
    """What Meta-World's own scripted policy does, (4,), within [-1, 1]."""
    from metaworld.policies import SawyerPickPlaceV3Policy  # type: ignore[import-not-found]

    action = SawyerPickPlaceV3Policy().get_action(observation)  # keeps no state
    return np.asarray(np.clip(action, -1.0, 1.0), np.float64)
