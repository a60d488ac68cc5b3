"""EDMP (Saha et al. 2024): an ensemble of chains, each guided by its own cost and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
from torch import nn

from muninn.model.planner import Planner
from muninn.model.solvers import ddpm
from muninn_bench.networks.agent import Agent
from muninn_bench.planners.cost_guidance import Push, Pushed, guided_planner
from muninn_bench.planners.motion_cost import MotionCost
from muninn_bench.planners.motion_prior import CLIP, MotionPrior


@dataclass(frozen=True)
class EDMP:
    """Ensemble of costs for motion planning: one chain for every cost and every schedule.

    The chains are DDPM's, with its variance. In a schedule the size of a gradient step falls from
    its peak linearly towards 0, which it would reach after the last step. The margin tightens
    meanwhile: it rises linearly from ``loose`` times a cost's own to the whole of it.

    Attributes:
        prior: what the network is; the same as MPD's.
        costs: margin in metres, and weight of roughness.
        peaks: of the schedules, in normalised joints a gradient step.
        gradient_steps: of one sampler step.
        loose: share of the margin at the first guided step.
        guided: share of the steps that is guided, the last ones.
        pushed: what gradient steps lead away from.
    """

    prior: MotionPrior
    costs: tuple[tuple[float, float], ...] = ((0.03, 0.1), (0.06, 0.1), (0.06, 0.3))
    peaks: tuple[float, ...] = (0.05, 0.1, 0.2)
    gradient_steps: int = 5
    loose: float = 0.5
    guided: float = 0.25
    pushed: Pushed = "mean"
    name: ClassVar[str] = "edmp"

    @property
    def chains(self) -> list[tuple[tuple[float, float], float]]:
        """Cost and peak of each row of a call."""
        return list(product(self.costs, self.peaks))

    def push(self) -> Push:
        """Sizes and margins of each chain."""
        count, steps = int(self.guided * self.prior.steps), self.prior.steps
        left = np.zeros(steps)  # 1 at the first guided step, 0 after the last
        left[:count] = (1.0 + np.arange(count)) / count
        tight = 1.0 - (1.0 - self.loose) * left
        sizes = [peak * left for _, peak in self.chains]
        margins = [margin * tight for (margin, _), _ in self.chains]
        return Push(
            np.stack(sizes, axis=1), np.stack(margins, axis=1), self.gradient_steps, self.pushed
        )

    def planner(self, agent: Agent, clearance: nn.Module) -> Planner:
        """Full compute for an arm, with the networks of a trained prior."""
        smoothness = tuple(weight for (_, weight), _ in self.chains)
        cost = MotionCost(clearance, agent.coordinates, smoothness)
        sampler = ddpm(self.prior.schedule, kind="epsilon", clip=CLIP)
        return guided_planner(self.prior, agent, sampler, cost, self.push())
