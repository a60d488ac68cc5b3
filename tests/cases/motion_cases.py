"""Stand-ins for an arm among boxes: a point, a planar chain, problems, motions and tiny priors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muninn.model.planner import Planner
from muninn_bench.networks.agent import Agent
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.runs import Runs
from muninn_bench.networks.trainer import Training
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.edmp import EDMP
from muninn_bench.planners.motion_prior import MotionPrior
from muninn_bench.planners.motion_prior_lesson import MotionLesson
from muninn_bench.planners.mpd import MPD

JOINTS, BOXES, REACH = 7, 3, 2.0
"""Coordinates of a joint are within ``REACH`` radians."""

PRIOR = MotionPrior(JOINTS, horizon=16, widths=(8, 16), blocks=1, time_width=16)
PLANNERS: dict[str, Any] = {"mpd": MPD(PRIOR, rows=4), "edmp": EDMP(PRIOR)}


class Point(nn.Module):
    """An arm of one sphere; its first three joints are its place, one metre a radian."""

    radius: Tensor

    def __init__(self, radius: float = 0.1) -> None:
        super().__init__()
        self.register_buffer("radius", torch.tensor(radius), persistent=False)
        self.calls = 0

    def forward(self, joints: Tensor, boxes: Tensor) -> Tensor:
        """Signed distances (..., 1)."""
        self.calls += 1
        return distance(joints[..., None, :3], boxes) - self.radius


class Chain(nn.Module):
    """A planar chain of links of half a metre; a sphere at the end of each."""

    def forward(self, joints: Tensor, boxes: Tensor) -> Tensor:
        """Signed distances (..., joints)."""
        return distance(self.ends(joints), boxes) - 0.05

    def ends(self, joints: Tensor) -> Tensor:
        """Places (..., joints, 3)."""
        angle = joints.cumsum(dim=-1)
        flat = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=-1)
        return 0.5 * flat.cumsum(dim=-2)


def distance(points: Tensor, boxes: Tensor) -> Tensor:
    """Signed distances (..., points) of points (..., points, 3) to the nearest box."""
    beyond = (points[..., None, :] - boxes[..., None, :, :3]).abs() - boxes[..., None, :, 3:]
    outside = torch.linalg.vector_norm(beyond.clamp_min(0.0), dim=-1)
    return (outside + beyond.amax(dim=-1).clamp_max(0.0)).amin(dim=-1)


def hand(joints: Tensor) -> Tensor:
    """Where the point is."""
    return joints[..., :3]


def coordinates() -> Coordinates:
    limit = torch.full((JOINTS,), REACH)
    return Coordinates(-limit, limit)


def problems(count: int, seed: int = 0) -> Tensor:
    """Contexts (count, 14 + 6 boxes): ends on two sides, one box between them, others beside."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return 2.0 * torch.rand(count, *shape, generator=generator) - 1.0

    start, goal = 0.3 * uniform(JOINTS), 0.3 * uniform(JOINTS)
    start[:, 0] -= 0.5
    goal[:, 0] += 0.5
    middle = REACH * 0.5 * (start + goal)[:, None, :3]
    centres = middle + uniform(BOXES, 3) * torch.tensor([0.2, 0.1, 0.1])
    centres[:, 1:, 1:] += 0.8 * uniform(BOXES - 1, 2).sign()
    halves = 0.2 + 0.1 * uniform(BOXES, 3)
    boxes = torch.cat([centres, halves], dim=-1).flatten(1)
    return torch.cat([start, goal, boxes], dim=1)


def motions(count: int, horizon: int, seed: int = 0, spread: float = 0.15) -> Runs:
    """Recorded motions: straight lines with bends in the first three joints, of any size."""
    generator = np.random.default_rng(seed)
    share = np.linspace(0.0, 1.0, horizon)[:, None]
    ends = generator.uniform(-0.3, 0.3, (count, 2, JOINTS))
    ends[:, :, 0] += [-0.5, 0.5]
    plans = ends[:, :1] * (1.0 - share) + ends[:, 1:] * share
    bends = np.zeros((count, 2, 1, JOINTS))
    bends[..., :3] = generator.normal(0.0, spread, (count, 2, 1, 3))
    plans += bends[:, 0] * np.sin(math.pi * share) + 0.5 * bends[:, 1] * np.sin(2 * math.pi * share)
    frames = REACH * np.clip(plans, -1.0, 1.0).reshape(-1, JOINTS)
    offsets = horizon * np.arange(count + 1)
    return Runs(frames.astype(np.float32), offsets.astype(np.int64), 0.1, JOINTS, JOINTS)


def agent(recipe: MotionPrior = PRIOR, seed: int = 0) -> Agent:
    """An untrained prior whose weights are all drawn: some layers begin with zeros."""
    torch.manual_seed(seed)
    networks = recipe.networks().eval().requires_grad_(False)
    for parameter in networks.parameters():
        parameter.normal_(std=0.2)
    return Agent("point", recipe.planner, networks, coordinates(), recipe.steps)


def planner(name: str, clearance: nn.Module | None = None) -> Planner:
    """A tiny planner of an untrained prior."""
    found: Planner = PLANNERS[name].planner(agent(), clearance or Point())
    return found


def lesson(runs: Runs | None = None, recipe: MotionPrior = PRIOR) -> MotionLesson:
    """The lesson of a prior on the point's motions, on the CPU."""
    runs = motions(40, recipe.horizon) if runs is None else runs
    return MotionLesson(recipe, "point", runs, coordinates(), torch.device("cpu"))


def settings(out: Any, **changes: Any) -> Training:
    given = {"steps": 4, "batch": 8, "device": "cpu", "fast": False, "report": 2, "minutes": 9.0}
    return Training(out, **{**given, **changes})


def blind() -> TemporalUnet:
    """A network of the same plans that is told nothing."""
    config = UnetConfig(JOINTS, widths=(8, 16), blocks=1, middle_blocks=1, time_width=16)
    return TemporalUnet(config, PRIOR.schedule, PRIOR.horizon)
