"""Plan once, then track the plan in the real maze with a PD controller."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muninn.errors import InputError
from muninn_bench.tasks.maze2d.controller import TIME_STEP, tracking_action
from muninn_bench.tasks.maze2d.data import FRAME_STRIDE
from muninn_bench.tasks.maze2d.maze import MazeProblem
from muninn_bench.tasks.maze2d.world import shared_world

HONEST = 0.1
"""Metres from the goal at which the ball has arrived; the environment says so at 0.45."""


def reach(
    problem: MazeProblem, plan: NDArray[np.floating], seed: int
) -> tuple[float | None, float]:
    """Seconds until tracking one plan in ``PointMaze_Large-v3`` gives the environment's success,
    and how close the ball comes to the goal, in metres.

    Positions and velocities of the plan are interpolated to the environment's step and tracked by
    PD; the planned actions are not used, so that success says something about the path alone. The
    last frame is held until the ball is within :data:`HONEST` metres of the goal, or the
    environment truncates the episode (800 steps).

    Args:
        problem: start and goal in world units.
        plan: (horizon, 6) in world units, one frame every three environment steps.
        seed: of the environment's reset.

    Raises:
        InputError: the plan does not have shape (horizon, 6) or is not finite.
    """
    frames = np.asarray(plan, dtype=np.float64)
    if frames.ndim != 2 or frames.shape[1] != 6:
        raise InputError(f"a plan must have shape (horizon, 6), got {frames.shape}")
    if not np.isfinite(frames).all():
        raise InputError("the plan holds values that are not finite")
    known = np.arange(len(frames))
    at = np.arange((len(frames) - 1) * FRAME_STRIDE + 1) / FRAME_STRIDE
    target = np.stack([np.interp(at, known, column) for column in frames[:, :4].T], axis=1)
    world = shared_world()
    state = world.place(problem, seed)
    step, ended, closest = 0, False, np.inf
    reached: int | None = None
    while not ended and (reached is None or closest > HONEST):
        wanted = target[min(step, len(target) - 1)]
        # Once the plan is over its last frame is a place to stay at.
        velocity = wanted[2:] if step < len(target) else np.zeros(2)
        action = tracking_action(state[:2], state[2:], wanted[:2], velocity)
        state, success, ended = world.step(action)
        step += 1
        closest = min(closest, float(np.linalg.norm(state[:2] - problem.goal)))
        reached = step if success and reached is None else reached
    return None if reached is None else reached * TIME_STEP, closest


def follow_all(problems: list[MazeProblem], plans: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Track one plan per problem, (problems, horizon, 6); whether each succeeds, (problems,)."""
    if len(problems) != len(plans):
        raise InputError(f"got {len(problems)} problems and {len(plans)} plans")
    found = [reach(*pair, seed) for seed, pair in enumerate(zip(problems, plans, strict=True))]
    return np.array([seconds is not None for seconds, _ in found], dtype=np.bool_)
