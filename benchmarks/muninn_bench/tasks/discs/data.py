"""Demonstrations: smooth ways around the disc, on either side with equal chance."""

from __future__ import annotations

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.networks.runs import Runs
from muninn_bench.tasks.discs.world import SECONDS, Problem, clearance, draw_problem

HORIZON = 32

ROOM = 0.05
"""Between a demonstration and the disc, metres."""


def demonstrate(problem: Problem, generator: np.random.Generator) -> FloatArray:
    """One way, (HORIZON, 2): either side of the disc by a fair coin, at least ROOM away from it.

    Both sides are open from every start to every goal. The coin is tossed once, and the way drawn
    again until it has room, so that room does not favour a side.
    """
    side = generator.choice((-1.0, 1.0))
    while True:
        way = _bent(problem, side, generator)
        if clearance(way) >= ROOM:
            return way


def _bent(problem: Problem, side: float, generator: np.random.Generator) -> FloatArray:
    """The straight line with a bend to one side: how far, where, and how fast are drawn."""
    share = np.linspace(0.0, 1.0, 8 * HORIZON)
    way = np.outer(1.0 - share, problem.start) + np.outer(share, problem.goal)
    apex = generator.uniform(0.4, 0.6)
    passing = side * generator.uniform(0.7, 0.9) - np.interp(apex, share, way[:, 1])
    # A power of the share, whose half lies at the apex.
    bend = np.sin(np.pi * share ** (np.log(0.5) / np.log(apex))) ** 1.5
    way[:, 1] += passing * bend
    gone = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(way, axis=0), axis=1))])
    time = np.linspace(0.0, 1.0, HORIZON)
    pace = generator.uniform(-0.3, 0.3)  # faster, or slower, at the ends than in the middle
    at = gone[-1] * (time + pace * np.sin(2.0 * np.pi * time) / (2.0 * np.pi))
    return np.stack([np.interp(at, gone, way[:, axis]) for axis in range(2)], axis=1)


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
