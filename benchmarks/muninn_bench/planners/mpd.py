"""MPD (Carvalho et al. 2023): many plans of one guided chain, the best free one is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from muninn.model.planner import Planner
from muninn.model.solvers import ddim
from muninn_bench.networks.agent import Agent
from muninn_bench.planners.cost_guidance import Push, Pushed, guided_planner
from muninn_bench.planners.motion_cost import MotionCost
from muninn_bench.planners.motion_prior import CLIP, MotionPrior


@dataclass(frozen=True)
class MPD:
    """Motion Planning Diffusion: DDIM without noise, guided in the last quarter of the steps.

    A gradient step has one size at all of these, as in MPD's code, and not that of a variance: of
    the posterior's, 0 at the last step, little of the guidance is left.

    Attributes:
        prior: what the network is.
        rows: plans of one call.
        size: of a gradient step, in normalised joints.
        gradient_steps: of one sampler step.
        margin: metres from a box below which a sphere costs something.
        smoothness: weight of roughness, against a collision of 1.
        guided: share of the steps that is guided, the last ones.
        pushed: what gradient steps lead away from.
    """

    prior: MotionPrior
    rows: int = 32
    size: float = 0.05
    gradient_steps: int = 5
    margin: float = 0.05
    smoothness: float = 0.5
    guided: float = 0.25
    pushed: Pushed = "mean"
    name: ClassVar[str] = "mpd"

    def push(self) -> Push:
        """Every row alike."""
        sizes = np.zeros((self.prior.steps, self.rows))
        sizes[: int(self.guided * self.prior.steps)] = self.size
        return Push(sizes, np.full_like(sizes, self.margin), self.gradient_steps, self.pushed)

    def planner(self, agent: Agent, clearance: nn.Module) -> Planner:
        """Full compute for an arm, with the networks of a trained prior."""
        cost = MotionCost(clearance, agent.coordinates, (self.smoothness,) * self.rows)
        sampler = ddim(self.prior.schedule, kind="epsilon", clip=CLIP)
        return guided_planner(self.prior, agent, sampler, cost, self.push())
