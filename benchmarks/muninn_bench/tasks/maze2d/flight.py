"""Maze2D-large as a platform: the bundled planner replans while gusts push the ball.

The world is the MuJoCo model of ``PointMaze_Large-v3``, stepped as the environment steps it. It is
harder than the environment in three ways: the ball is pushed by smooth random forces, the planner
is told a noisy state, and touching a wall ends the episode. Goal radius and time limit are the
environment's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from muninn.context import Context
from muninn.model.schedule import FloatArray
from muninn_bench.networks.teacher import Teacher
from muninn_bench.platform import Outcome, Snapshot
from muninn_bench.tasks.maze2d import maze
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.controller import TIME_STEP, smooth_noise, tracking_action
from muninn_bench.tasks.maze2d.planner import bundled_teacher, maze_contexts, maze_planner
from muninn_bench.tasks.maze2d.world import MazeWorld

GOAL_RADIUS = 0.45  # metres, the environment's own
TIME_LIMIT = 8.0  # seconds, the environment's 800 steps
TOP_SPEED = 5.0  # metres per second and axis to which the environment clips velocities

_WALL_CENTRES = np.array(
    [maze.cell_centre((row, column)) for row, column in np.argwhere(maze.WALLS)]
)


def wall_clearance(position: FloatArray) -> float:
    """Metres from the ball's surface to the nearest wall, negative inside it."""
    gap = np.maximum(np.abs(position - _WALL_CENTRES) - 0.5, 0.0)
    return float(np.sqrt((gap * gap).sum(axis=1).min())) - maze.BALL_RADIUS


class MazeEpisode:
    """One drive through the maze; see :class:`muninn_bench.platform.Episode`."""

    def __init__(self, platform: MazePlatform, seed: int) -> None:
        import mujoco

        generator = np.random.default_rng(seed)
        problem = maze.draw_problem(generator)
        steps = round(TIME_LIMIT / TIME_STEP) + 1
        self.goal: FloatArray = problem.goal
        self.time = 0.0
        self.outcome: Outcome | None = None
        self._platform = platform
        # For every step, drawn ahead: what the planner does changes none of it.
        self._gusts = smooth_noise(steps, platform.gust, generator)
        self._sensors = generator.standard_normal((steps, 4))
        self._world = platform.model
        self._data = mujoco.MjData(self._world)
        self._data.qpos[:] = problem.start[:2]
        self._data.qvel[:] = problem.start[2:]
        mujoco.mj_forward(self._world, self._data)
        self._steps, self._holding = 0, False
        self.smallest_clearance = wall_clearance(problem.start[:2])
        self.hold()

    def context(self) -> Tensor:
        """Sensed state and goal, normalised, (1, 2, 4)."""
        spread = np.repeat(self._platform.noise, 2)
        state = np.concatenate([self._data.qpos, self._data.qvel])
        sensed = state + spread * self._sensors[self._steps]
        return maze_contexts(self._platform.teacher, [maze.MazeProblem(sensed, self.goal)])

    def follow(self, plan: Tensor, taken: float, factor: float = 1.0) -> None:
        """Track a plan of 256 frames from the frame that is due now; ``factor`` damps forces."""
        teacher = self._platform.teacher
        frames = teacher.unnormalise(plan[:, :4].float()).double().numpy()
        age = self.time - taken
        end = (len(frames) - 1) * teacher.frame_seconds
        due = np.arange(age, max(end, age) + TIME_STEP, TIME_STEP)
        known = np.arange(len(frames)) * teacher.frame_seconds
        self._reference = np.stack([np.interp(due, known, column) for column in frames.T], axis=1)
        self._reference[due > end, 2:] = 0.0  # the last frame is a place to stay at
        self._since, self._factor, self._holding = self._steps, factor, False

    def hold(self) -> None:
        """Stay at the place where the ball is now; a ball that stays already, at its place."""
        if not self._holding:
            self._reference = np.array([[*self._data.qpos, 0.0, 0.0]])
            self._since, self._factor, self._holding = self._steps, 1.0, True

    def advance(self, seconds: float) -> None:
        """Simulate steps of 10 ms, up to the last that lies within the time."""
        import mujoco

        until = self.time + seconds
        while self.outcome is None and (self._steps + 1) * TIME_STEP <= until + 1e-9:
            np.clip(self._data.qvel, -TOP_SPEED, TOP_SPEED, out=self._data.qvel)
            pushed = self._action() + self._gusts[self._steps]
            self._data.ctrl[:] = np.clip(pushed, -1.0, 1.0)
            mujoco.mj_step(self._world, self._data)
            self._steps += 1
            self.time = self._steps * TIME_STEP
            self._judge()
        if self.outcome is None:
            self.time = until

    def snapshot(self) -> Snapshot:
        """The present moment."""
        position = np.array(self._data.qpos)
        to_goal = float(np.linalg.norm(position - self.goal))
        return Snapshot(self.time, position, wall_clearance(position), to_goal)

    def _action(self) -> FloatArray:
        wanted = self._reference[min(self._steps - self._since, len(self._reference) - 1)]
        position, velocity = self._data.qpos, self._data.qvel
        return tracking_action(position, velocity, wanted[:2], wanted[2:], factor=self._factor)

    def _judge(self) -> None:
        clearance = wall_clearance(self._data.qpos)
        self.smallest_clearance = min(self.smallest_clearance, clearance)
        if clearance < 0.0:
            self.outcome = "collision"
        elif np.linalg.norm(self._data.qpos - self.goal) <= GOAL_RADIUS:
            self.outcome = "success"
        elif self.time >= TIME_LIMIT - 1e-9:
            self.outcome = "timeout"


@dataclass
class MazePlatform:
    """See :class:`muninn_bench.platform.Platform`.

    The paper names no planning rate for Maze2D. Half a second is one that Muninn keeps on two
    cores, new samples included, and full compute does not. The planner is not told of gusts.
    """

    teacher: Teacher = field(default_factory=bundled_teacher)
    gust: float = 0.3  # standard deviation of the force, in units of the largest action
    noise: tuple[float, float] = (0.01, 0.05)  # and of the sensed state, metres and m/s
    name: str = "maze2d"
    period: float = 0.5
    candidates: int = 4
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        self.planner = maze_planner(self.teacher)

    @cached_property
    def model(self) -> Any:
        """The environment's MuJoCo model; episodes share it and have data of their own."""
        return MazeWorld().model

    def begin(self, seed: int) -> MazeEpisode:
        """A fresh problem, gusts and sensor noise."""
        return MazeEpisode(self, seed)

    def screen(self, plan: Tensor, context: Context) -> bool:
        """No frame, nor the straight way between two, brings the ball into a wall."""
        return bool(plan_is_free(self.path(plan), maze.BALL_RADIUS))

    def path(self, plan: Tensor) -> FloatArray:
        """Positions in metres, (horizon, 2)."""
        world: FloatArray = self.teacher.unnormalise(plan[:, :2].float()).double().numpy()
        return world

    def outlines(self) -> list[FloatArray]:
        """The edges between walls and free cells, each (2, 2), for pictures."""
        lines = []
        for row, column in np.argwhere(~maze.WALLS):
            for down, across in ((-1, 0), (0, 1), (1, 0), (0, -1)):
                if maze.WALLS[row + down, column + across]:
                    middle = maze.cell_centre((row, column)) + np.array([across, -down]) / 2.0
                    along = np.array([-down, -across]) / 2.0
                    lines.append(np.stack([middle - along, middle + along]))
        return lines
