"""FrankaKitchen-v1: open the microwave, move the kettle, switch the light, slide the cabinet."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import numpy as np

from muninn.model.schedule import FloatArray

GOALS = ("microwave", "kettle", "light switch", "slide cabinet")
"""The four tasks of D4RL's kitchen-complete, in the order of its demonstrations."""

LIMIT = 280
"""Steps after which the clock ends an episode, the environment's own."""

STEP_SECONDS = 0.08
OBSERVATION, ACTION = 59, 9


class Kitchen:
    """The environment; see :class:`muninn_bench.tasks.control.World`.

    A reward of 1 comes with each of the four tasks, once. The start is always the same; only the
    noise of the observations depends on the seed.

    Args:
        limit: steps of an episode; a demonstration may take longer than ``LIMIT``.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        import gymnasium

        # The import prints a notice about environments that are not used here.
        with redirect_stderr(io.StringIO()):
            import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)
        environment: Any = gymnasium.make(
            "FrankaKitchen-v1", tasks_to_complete=list(GOALS), disable_env_checker=True
        )
        self._environment, self._limit, self._steps = environment.unwrapped, limit, 0

    def reset(self, seed: int) -> FloatArray:
        """The arm at rest, every task to be done."""
        self._steps = 0
        observation: FloatArray = self._environment.reset(seed=seed)[0]["observation"]
        return observation

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool]:
        """Joint velocities, 1 is 2 rad/s; over when all tasks are done, or by the clock."""
        seen, reward, complete, _, _ = self._environment.step(action)
        self._steps += 1
        return seen["observation"], float(reward), bool(complete or self._steps >= self._limit)


def towards(target: FloatArray, observation: FloatArray) -> FloatArray:
    """The action that brings the joints to a target (9,) within a step, as far as it can."""
    return np.clip((target - observation[:ACTION]) / (2.0 * STEP_SECONDS), -0.999, 0.999)
