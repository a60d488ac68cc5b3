"""The maze planner's training data.

A run starts at rest at a random place, follows one of the shortest cell routes, drawn at random,
and ends at rest on its goal. Every third environment step is kept, which lets the longest route
and a hold at the goal fit in 256 frames.
"""

from __future__ import annotations

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.maze2d import controller
from muninn_bench.tasks.maze2d.maze import cell_of, draw_problem, shortest_route
from muninn_bench.tasks.maze2d.world import shared_world
from muninn_bench.tasks.recorded import Recording

HORIZON = 256
"""Frames of a plan."""

FRAME_STRIDE = 3
"""Environment steps per frame of a plan."""

DATA_JITTER = 0.3
"""Offset of data starts and goals from cell centres: a little wider than the problems' 0.25 m, so
that problems lie inside the data."""

NOISE = 0.05
"""Standard deviation of the smooth noise on the action."""

_SETTLE_STEPS = 40
_FADE_STEPS = 60


def make_runs(seed: int, index: int) -> list[FloatArray]:
    """Run ``index``: frames (x, y, vx, vy, fx, fy), (frames, 6), from rest to rest at the goal."""
    generator = np.random.default_rng([seed, index])
    problem = draw_problem(generator, DATA_JITTER)
    route = shortest_route(cell_of(problem.start[:2]), cell_of(problem.goal), generator)
    reference = controller.make_reference(problem, route)
    position, velocity, moving = reference.position, reference.velocity, len(reference.position)
    # Noise is faded out towards the goal so that the run really comes to rest there.
    fade = np.clip((moving - np.arange(moving)) / _FADE_STEPS, 0.0, 1.0)[:, None]
    noise = controller.smooth_noise(moving, NOISE, generator) * fade
    path = (position, velocity)
    feedforward = controller.tracking_action(*path, *path, reference.acceleration)
    still = np.zeros((_SETTLE_STEPS, 2))
    states, actions = shared_world().track(
        problem,
        np.concatenate([position, still + position[-1]]),
        np.concatenate([velocity, still]),
        np.concatenate([feedforward + noise, still]),
    )
    return [np.concatenate([states, actions], axis=1)[::FRAME_STRIDE]]


RECORDING = Recording("maze2d", make_runs, 30_000, FRAME_STRIDE * controller.TIME_STEP, 2, 4)
