"""The vessel as a platform: its planner, its episodes and its feasibility screen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from muninn.context import Context
from muninn.model.schedule import FloatArray
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher, load_teacher
from muninn_bench.planners.diffuser import diffuser_planner
from muninn_bench.tasks.asv.episode import AsvEpisode
from muninn_bench.tasks.asv.lake import Lake, draw_problem, make_lake
from muninn_bench.tasks.asv.mpc import require_osqp
from muninn_bench.tasks.asv.reference import FRAME_SECONDS, SCREENED, followed
from muninn_bench.tasks.asv.vessel import Weather

SCREEN_MARGIN = 0.5
"""Metres beyond hull radius and shore buffer that a plan must keep: what tracking may be off."""


@dataclass
class AsvPlatform:
    """See :class:`muninn_bench.platform.Platform`."""

    teacher: Teacher = field(
        default_factory=lambda: load_teacher(model_file("asv/teacher.safetensors"))
    )
    lake: Lake = field(default_factory=make_lake)
    name: str = "asv"
    period: float = 1.0
    candidates: int = 4
    tolerance: float = 0.5

    def __post_init__(self) -> None:
        require_osqp()  # a missing package is told now, not in the first episode
        self.planner = diffuser_planner(self.teacher)

    def begin(self, seed: int) -> AsvEpisode:
        """A fresh problem, weather and sensor noise."""
        generator = np.random.default_rng(seed)
        problem, weather = draw_problem(self.lake, generator), Weather(generator)
        return AsvEpisode(self.lake, problem, weather, generator, self.teacher)

    def screen(self, plan: Tensor, context: Context) -> bool:
        """No frame soon, nor the middle between two, is too close to land, buoys or the buffer.

        A vessel that is itself too close may leave: its plan must then lead no decimetre closer.
        """
        frames = self.teacher.unnormalise(plan.float()).double().numpy()
        path = followed(frames)[: round(SCREENED / FRAME_SECONDS) + 1, :2]
        middles = 0.5 * (path[1:] + path[:-1])
        clearance = self.lake.clearance(np.concatenate([path, middles]))
        return bool(clearance.min() >= min(SCREEN_MARGIN, float(clearance[0]) - 0.1))

    def path(self, plan: Tensor) -> FloatArray:
        """Positions in metres, (horizon, 2)."""
        world: FloatArray = self.teacher.unnormalise(plan[:, :2].float()).double().numpy()
        return world

    def outlines(self) -> list[FloatArray]:
        """Closed outlines of shore, islands and buoys, each (points, 2), for pictures."""
        turn = np.linspace(0.0, 2.0 * np.pi, 17)
        circle = np.stack([np.cos(turn), np.sin(turn)], axis=1)
        rings = [*self.lake.shore.rings, *self.lake.islands.rings]
        buoys = zip(self.lake.buoys.centres, self.lake.buoys.radii, strict=True)
        lines = [np.concatenate([ring, ring[:1]]) for ring in rings]
        return lines + [centre + radius * circle for centre, radius in buoys]
