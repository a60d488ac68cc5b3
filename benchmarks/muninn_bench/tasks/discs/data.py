"""Demonstrations: smooth ways around the disc, on either side with equal chance."""

from __future__ import annotations

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.networks.runs import Runs
from muninn_bench.tasks.discs.world import SECONDS, Problem, draw_problem

HORIZON = 32


def demonstrate(problem: Problem, generator: np.random.Generator) -> FloatArray:
    """One way of equal steps, (HORIZON, 2): the straight line, bent around the disc."""
    share = np.linspace(0.0, 1.0, 8 * HORIZON)[:, None]
    way = (1.0 - share) * problem.start + share * problem.goal
    side = generator.choice((-1.0, 1.0))
    passing = side * generator.uniform(0.62, 0.72) - way[len(way) // 2, 1]
    way[:, 1] += passing * np.sin(np.pi * share[:, 0]) ** 2
    gone = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(way, axis=0), axis=1))])
    even = np.linspace(0.0, gone[-1], HORIZON)
    return np.stack([np.interp(even, gone, way[:, axis]) for axis in range(2)], axis=1)


def record(count: int, seed: int) -> Runs:
    """``count`` demonstrations; each is a function of seed and number."""
    runs = []
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        runs.append(demonstrate(draw_problem(generator), generator))
    return Runs(
        frames=np.concatenate(runs).astype(np.float32),
        offsets=np.arange(count + 1, dtype=np.int64) * HORIZON,
        frame_seconds=SECONDS / (HORIZON - 1),
        position_channels=2,
        state_channels=2,
    )
