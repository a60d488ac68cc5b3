"""The Crazyflie as a platform: its planner, its episodes, its collision check."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.model.schedule import FloatArray
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher, load_teacher
from muninn_bench.planners.diffuser import diffuser_planner
from muninn_bench.tasks.crazyflie.arena import COLLISION_MARGIN, clearance, outlines
from muninn_bench.tasks.crazyflie.episode import CrazyflieEpisode
from muninn_bench.tasks.crazyflie.reference import PlanSpline


class Crazyflie:
    """3-D navigation of a micro-quadrotor in simulation, replanned at 10 Hz.

    Raises:
        InputError: no teacher is given, and the bundled one is missing.
    """

    name = "crazyflie"
    period = 0.1
    candidates = 3
    tolerance = 0.05

    def __init__(self, teacher: Teacher | None = None) -> None:
        self.teacher = teacher or load_teacher(model_file("crazyflie/teacher.safetensors"))
        self.planner = diffuser_planner(self.teacher)

    def begin(self, seed: int) -> CrazyflieEpisode:
        """A fresh flight; everything random in it is drawn from the seed."""
        return CrazyflieEpisode(self.teacher, seed)

    def screen(self, plan: Tensor, context: Context) -> bool:
        """Is the plan finite, and its whole spline out of the inflated obstacles?"""
        if not bool(torch.isfinite(plan).all()):
            return False
        frames = self.teacher.unnormalise(plan).double().cpu().numpy()
        spline = PlanSpline(frames, self.teacher.frame_seconds)
        return bool(clearance(spline.sampled()).min() >= COLLISION_MARGIN)

    def path(self, plan: Tensor) -> FloatArray:
        """Planned positions, metres, (horizon, 3)."""
        return np.asarray(self.teacher.unnormalise(plan)[..., :3].double().cpu().numpy())

    def outlines(self) -> list[FloatArray]:
        """Edges of the arena and its obstacles, each (points, 3), for pictures."""
        return outlines()
