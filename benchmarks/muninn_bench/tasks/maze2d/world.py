"""The real ``PointMaze_Large-v3`` environment, placed at a state and goal of our choice."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.maze2d import controller
from muninn_bench.tasks.maze2d.maze import MazeProblem, cell_of


class MazeWorld:
    """One reusable environment; ``place`` starts an episode of a given problem.

    Raises:
        InputError: gymnasium-robotics is not installed.
    """

    def __init__(self) -> None:
        try:
            import gymnasium

            # The import prints a notice about environments that are not used here.
            with redirect_stderr(io.StringIO()):
                import gymnasium_robotics
        except ImportError as error:
            raise InputError("the maze needs gymnasium-robotics; reinstall muninn-bench") from error
        gymnasium.register_envs(gymnasium_robotics)
        self._environment: Any = gymnasium.make("PointMaze_Large-v3")

    @property
    def model(self) -> Any:
        """The MuJoCo model."""
        return self._environment.unwrapped.point_env.model

    def place(self, problem: MazeProblem, seed: int) -> FloatArray:
        """Start an episode at the problem's start and goal; return ``(x, y, vx, vy)``."""
        options = {
            "goal_cell": np.array(cell_of(problem.goal)),
            "reset_cell": np.array(cell_of(problem.start[:2])),
        }
        self._environment.reset(seed=seed, options=options)
        inner = self._environment.unwrapped
        # The environment only takes cells and adds its own jitter; exact places are set after it.
        inner.goal = np.array(problem.goal, dtype=np.float64)
        inner.update_target_site_pos()
        inner.point_env.set_state(problem.start[:2], problem.start[2:])
        return np.array(problem.start, dtype=np.float64)

    def step(self, action: NDArray[np.floating]) -> tuple[FloatArray, bool, bool]:
        """Apply one action; return the state ``(4,)``, the success signal and the end signal."""
        observation, _, terminated, truncated, info = self._environment.step(action)
        state: FloatArray = observation["observation"]
        return state, bool(info["success"]), bool(terminated or truncated)

    def track(
        self,
        problem: MazeProblem,
        positions: FloatArray,
        velocities: FloatArray,
        feedforward: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Follow a reference with PD feedback on the environment's own MuJoCo model.

        Steps the model as the environment does (velocity clipped to 5 m/s, then one step), without
        the per-step bookkeeping of ``step``, which makes data several times faster to collect.
        The reference and the action added to the feedback are (steps, 2) each.

        Returns:
            States before each step, (steps, 4), and the actions taken there, (steps, 2).
        """
        import mujoco

        self.place(problem, seed=0)
        inner = self._environment.unwrapped.point_env
        model, data = inner.model, inner.data
        position_gain = controller.BALL_MASS * controller.POSITION_GAIN / controller.ACTUATOR_GEAR
        velocity_gain = controller.BALL_MASS * controller.VELOCITY_GAIN / controller.ACTUATOR_GEAR
        states = np.empty((len(positions), 4))
        actions = np.empty((len(positions), 2))
        for step in range(len(positions)):
            np.clip(data.qvel, -5.0, 5.0, out=data.qvel)
            states[step, :2] = data.qpos
            states[step, 2:] = data.qvel
            action = (
                feedforward[step]
                + position_gain * (positions[step] - data.qpos)
                + velocity_gain * (velocities[step] - data.qvel)
            )
            actions[step] = data.ctrl[:] = np.minimum(np.maximum(action, -1.0), 1.0)
            mujoco.mj_step(model, data)
        return states, actions


@cache
def shared_world() -> MazeWorld:
    """This process's environment; building one takes longer than an episode."""
    return MazeWorld()
