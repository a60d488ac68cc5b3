"""The stationary deployment of the bundled Maze2D planner, five ways to change, and their calls."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.engines.runtime import Runtime
from muninn.model.schedule import FloatArray
from muninn_bench.networks.teacher import Teacher
from muninn_bench.tasks.maze2d.controller import ControllerConfig
from muninn_bench.tasks.maze2d.data import FRAME_STRIDE
from muninn_bench.tasks.maze2d.maze import (
    START_JITTER,
    WALLS,
    Cell,
    MazeProblem,
    cell_of,
    draw_problem,
)
from muninn_bench.tasks.maze2d.planner import maze_contexts
from muninn_bench.tasks.maze2d.world import MazeWorld

DRIVEN_FRAMES = 64
"""Frames of a plan that are driven before the robot plans again: 1.9 s."""


@dataclass(frozen=True)
class Scenario:
    """One deployment. Each episode plans, drives 1.9 s of its plan, and plans again from there.

    Attributes:
        name: for tables.
        changes: what differs from the stationary deployment, in words.
        jitter: largest offset of starts and goals from cell centres, metres.
        position_noise, velocity_noise: standard deviation of the state that the planner is told,
            metres and metres per second.
        wall: a free cell that is walled up in the world; the planner is not told.
        mass: of the ball, as a multiple; neither controller nor planner is told.
        half: the network runs under bfloat16 autocast, which loading does not check.
    """

    name: str
    changes: str
    jitter: float = START_JITTER
    position_noise: float = 0.0
    velocity_noise: float = 0.0
    wall: Cell | None = None
    mass: float = 1.0
    half: bool = False


STATIONARY = Scenario("stationary", "nothing")
SHIFTS: tuple[Scenario, ...] = (
    Scenario(
        "new goals",
        "starts and goals up to 0.45 m from the cell's centre instead of 0.25 m, next to walls "
        "and outside of the training data",
        jitter=0.45,
    ),
    Scenario(
        "sensor noise",
        "Gaussian noise of 0.1 m and 0.5 m/s on the start state that the planner is told",
        position_noise=0.1,
        velocity_noise=0.5,
    ),
    Scenario(
        "other obstacles",
        "the busiest corridor cell is walled up; the planner sees no obstacles, so only states "
        "from which the robot plans again can change",
        wall=(4, 6),
    ),
    Scenario(
        "other dynamics",
        "a ball four times as heavy; the planner's input changes only through the states from "
        "which the robot plans again",
        mass=4.0,
    ),
    Scenario("other dtype", "the network under bfloat16 autocast", half=True),
)


class OtherWorld(MazeWorld):
    """The maze with a cell walled up or a heavier ball."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        import gymnasium
        import mujoco

        if scenario.wall is not None:
            cells = WALLS.astype(int)
            cells[scenario.wall] = 1
            with redirect_stderr(io.StringIO()):
                self._environment = gymnasium.make("PointMaze_Large-v3", maze_map=cells.tolist())
        model = self._environment.unwrapped.point_env.model
        model.body_mass[:] *= scenario.mass
        model.body_inertia[:] *= scenario.mass
        mujoco.mj_setConst(model, mujoco.MjData(model))  # a simple body's mass is kept twice

    def drive(self, problem: MazeProblem, frames: FloatArray) -> FloatArray:
        """State ``(x, y, vx, vy)`` after following frames ``(count, >= 4)`` in world units."""
        steps = np.arange((len(frames) - 1) * FRAME_STRIDE + 1) / FRAME_STRIDE
        known = np.arange(len(frames))
        target = np.stack([np.interp(steps, known, frames[:, c]) for c in range(4)], axis=1)
        still = np.zeros((len(target), 2))
        states, _ = self.track(problem, target[:, :2], target[:, 2:], still, ControllerConfig())
        last: FloatArray = states[-1]
        return last


def draw_episode(scenario: Scenario, generator: np.random.Generator) -> MazeProblem:
    """A problem whose start and goal are not inside the scenario's new wall."""
    while True:
        problem = draw_problem(generator, scenario.jitter)
        if scenario.wall not in (cell_of(problem.start[:2]), cell_of(problem.goal)):
            return problem


def audited_contexts(
    scenario: Scenario, teacher: Teacher, runtime: Runtime, stream: int, first: int, count: int
) -> Tensor:
    """Contexts (count, 2, 4) of one uniformly drawn call of each two-call episode.

    Episode ``first + i`` depends on the stream and its number alone. Its first call starts at
    rest; its second where the robot, driven by the cached planner's own plan, has come to.
    """
    draws = [np.random.default_rng([stream, first + i]) for i in range(count)]
    problems = [draw_episode(scenario, draw) for draw in draws]
    second = [i for i, draw in enumerate(draws) if draw.random() < 0.5]
    if second:
        noise = runtime.planner.draw_noise(seeds=[call_seed(stream, first + i, 0) for i in second])
        plans, _ = runtime(maze_contexts(teacher, [problems[i] for i in second]), noise=noise)
        frames = teacher.unnormalise(plans[:, :DRIVEN_FRAMES]).double().numpy()
        world = OtherWorld(scenario)
        for i, own in zip(second, frames, strict=True):
            problems[i] = MazeProblem(world.drive(problems[i], own), problems[i].goal)
    spread = np.repeat([scenario.position_noise, scenario.velocity_noise], 2)
    told = [
        MazeProblem(problem.start + spread * draw.standard_normal(4), problem.goal)
        for problem, draw in zip(problems, draws, strict=True)
    ]
    return torch.as_tensor(maze_contexts(teacher, told))
