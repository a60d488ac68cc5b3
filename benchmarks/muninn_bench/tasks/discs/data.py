"""Demonstrations: smooth ways around the disc, on either side with equal chance."""

from __future__ import annotations

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.discs.world import SECONDS, Problem, clearance, draw_problem
from muninn_bench.tasks.paths import arc_lengths
from muninn_bench.tasks.recorded import Recording

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
    gone = arc_lengths(way)
    time = np.linspace(0.0, 1.0, HORIZON)
    pace = generator.uniform(-0.3, 0.3)  # faster, or slower, at the ends than in the middle
    at = gone[-1] * (time + pace * np.sin(2.0 * np.pi * time) / (2.0 * np.pi))
    return np.stack([np.interp(at, gone, way[:, axis]) for axis in range(2)], axis=1)


def make_runs(seed: int, index: int) -> list[FloatArray]:
    """The demonstration of a number."""
    generator = np.random.default_rng([seed, index])
    return [demonstrate(draw_problem(generator), generator)]


RECORDING = Recording("discs", make_runs, 4000, SECONDS / (HORIZON - 1), 2, 2)
