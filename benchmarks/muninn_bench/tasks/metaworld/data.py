"""The policy's training data: episodes of Meta-World's scripted expert, disturbed.

Noise is added to the actions that are executed, the expert's own actions are recorded: they show
the way back from wherever the noise led. Every episode is a function of its index alone.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.metaworld.world import (
    ACTION,
    DATA,
    STEP_LIMIT,
    PickPlace,
    draw_problem,
    expert_action,
)
from muninn_bench.tasks.recorded import Recording

LARGEST_NOISE = 0.3
"""Largest standard deviation of an episode's noise, in units of the action (3 mm a step)."""

HOLD_STEPS = 16
"""Steps recorded after success: whole plans of staying at the goal."""


def demonstrate(world: PickPlace, index: int) -> tuple[FloatArray, FloatArray]:
    """One successful episode: observations (steps, 39) and the expert's actions (steps, 4).

    A quarter of the episodes has no noise; an episode whose noise makes the expert fail is tried
    again with half of it.
    """
    generator = np.random.default_rng([DATA, index, 1])
    problem = draw_problem(DATA, index)
    scale = max(0.0, generator.uniform(-1.0 / 3.0, 1.0)) * LARGEST_NOISE
    while True:
        observation = world.reset(problem)
        observations: list[FloatArray] = []
        actions: list[FloatArray] = []
        success_at: int | None = None
        while len(actions) < (STEP_LIMIT if success_at is None else success_at + HOLD_STEPS):
            action = expert_action(observation)
            observations.append(observation)
            actions.append(action)
            # Never on the gripper: a dropped puck teaches nothing.
            disturbed = action + scale * np.append(generator.standard_normal(ACTION - 1), 0.0)
            observation, success = world.step(disturbed)
            if success and success_at is None:
                success_at = len(actions)
        if success_at is not None:
            return np.array(observations), np.array(actions)
        if scale < 1e-3:
            raise InputError(
                f"the expert fails problem {index} of the data; check the version of Meta-World "
                "(3.1.1) and of mujoco (3.3.0)"
            )
        scale /= 2.0


@cache
def _world() -> PickPlace:
    """This process's environment."""
    return PickPlace()


def make_runs(seed: int, index: int) -> list[FloatArray]:
    """Episode ``index``, whatever the seed: an observation and its action a frame, (steps, 43)."""
    return [np.concatenate(demonstrate(_world(), index), axis=1)]


RECORDING = Recording("metaworld", make_runs, 1000, 1.0 / 80.0, 3, 39)
