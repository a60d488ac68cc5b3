"""Diffuser for control (Janner et al. 2022): plans of observations and actions, guided by returns.

A plan starts at the current observation, which is written into its first frame. A second network
estimates the return of a noisy plan, and its gradient pulls every step towards better plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from muninn.context import Context
from muninn.model.denoiser import GradientGuidance
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn_bench.networks.agent import Agent
from muninn_bench.networks.coordinates import Coordinates, range_coordinates
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.networks.value import PlanValue
from muninn_bench.planners.diffuser import InpaintedDenoiser
from muninn_bench.planners.policy import Policy, inpaint_start

CLIP = 1.0
"""Bound on clean plans, and on what is told of an observation: the range of the data."""


class PosteriorValue(nn.Module):
    """The estimated return, weighted so that DDPM's mean would move by its posterior variance.

    Diffuser adds ``scale * variance[t] * gradient`` to the mean of a DDPM step. Written in the
    predicted noise, which any sampler consumes, that is
    ``- scale * sqrt(alpha[t]) (1 - abar[t-1]) / sqrt(1 - abar[t]) * gradient``; gradient guidance
    itself has ``sqrt(1 - abar[t])``, and the rest is the weight here.
    """

    share: Tensor

    def __init__(self, value: PlanValue, schedule: Schedule) -> None:
        super().__init__()
        self.value = value
        now = schedule.alpha_bar
        before = np.concatenate([[1.0], now[:-1]])
        share = np.sqrt(now / before) * (1.0 - before) / (1.0 - now)
        device = next(value.parameters()).device
        self.register_buffer("share", torch.from_numpy(share).float().to(device), persistent=False)
        self.train(value.training)

    def forward(self, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """Weighted returns (batch,) of noisy plans."""
        found: Tensor = self.share[timestep] * self.value(x, timestep)
        return found


@dataclass(frozen=True)
class GuidedDiffuser:
    """See :class:`muninn_bench.planners.policy.Recipe`.

    Attributes:
        executed: actions of a plan that are carried out before the next plan.
        scale: of the guidance, per standard deviation of the returns in the data.
        widths, value_widths: of the U-Net and of the value network, level by level.
    """

    observation: int
    action: int
    horizon: int = 32
    executed: int = 1
    steps: int = 100
    scale: float = 1.0
    widths: tuple[int, ...] = (64, 128, 256)
    value_widths: tuple[int, ...] = (32, 64, 128)
    time_width: int = 64
    discount: float = 0.99
    planner: ClassVar[str] = "diffuser"

    def networks(self) -> nn.ModuleDict:
        """``plan``, which predicts the noise, and ``value``, which predicts the return."""
        channels = self.observation + self.action
        config = UnetConfig(
            channels=channels,
            widths=self.widths,
            blocks=1,
            middle_blocks=1,
            time_width=self.time_width,
            predicts="epsilon",
        )
        plan = TemporalUnet(config, Schedule.cosine(self.steps), self.horizon)
        value = PlanValue(channels, self.value_widths, self.time_width)
        return nn.ModuleDict({"plan": plan, "value": value})

    def coordinates(self, frames: Tensor) -> Coordinates:
        """The range of the data is [-1, 1], which samplers clip to."""
        return range_coordinates(frames)

    def guided(self, networks: nn.ModuleDict) -> Planner:
        """DDIM over every training step, with the guidance written in the predicted noise."""
        plan, value = networks["plan"], networks["value"]
        assert isinstance(plan, TemporalUnet) and isinstance(value, PlanValue)
        schedule = Schedule.cosine(self.steps)
        sampler = ddim(schedule, kind="epsilon", clip=CLIP)
        weight = next(plan.parameters())
        objective = PosteriorValue(value, schedule)
        return Planner(
            GradientGuidance(InpaintedDenoiser(plan), objective, self.scale, sampler),
            sampler,
            (self.horizon, self.observation + self.action),
            condition=inpaint_start,
            device=weight.device,
        )

    def policy(self, agent: Agent) -> Policy:
        """The first actions of a plan are executed."""
        view = partial(first_actions, self.executed, self.observation)
        read = partial(_read, view)
        planner = self.guided(agent.networks)
        return Policy(planner, agent.coordinates, self.observation, read, view, CLIP)


def first_actions(executed: int, observation: int, plans: Tensor) -> Tensor:
    """Actions of the first frames, (batch, executed, action)."""
    return plans[:, :executed, observation:]


def _read(view: partial[Tensor], plans: Tensor, contexts: Tensor) -> Tensor:
    return view(plans)


@dataclass(frozen=True)
class AdaptDiffuser(GuidedDiffuser):
    """AdaptDiffuser (Liang et al. 2023): a guided Diffuser that then learns from its own best.

    Attributes:
        rounds: shares of the training after which it plans for itself.
        drawn, together: plans of a round, and how many of them are drawn together.
    """

    steps: int = 60
    rounds: tuple[float, ...] = (0.6, 0.8)
    drawn: int = 8192
    together: int = 2048
    planner: ClassVar[str] = "adaptdiffuser"
