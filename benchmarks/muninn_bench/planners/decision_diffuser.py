"""Decision Diffuser (Ajay et al. 2023): plans of states for a wanted return; actions from states.

The wanted return enters as classifier-free guidance. It is told to the network in two channels
that are the same at every frame: the label, and whether there is one. The action that leads from
one planned state to the next is what an inverse dynamics network says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from muninn.context import Context
from muninn.model.denoiser import ClassifierFreeGuidance
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn_bench.networks.agent import Agent
from muninn_bench.networks.coordinates import Coordinates, range_coordinates
from muninn_bench.networks.mlp import Mlp
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.policy import Policy, beside, inpaint_start

CLIP = 1.0
"""Bound on clean plans, and on what is told of an observation: the range of the data."""

LABEL_CHANNELS = 2
"""Of the label, and whether there is one."""


@dataclass(frozen=True)
class LabelledDenoiser:
    """A network that is told the wanted return; without a context it is told none.

    The observation is inpainted, so a context says only that there is a call. That lets
    classifier-free guidance ask for the unlabelled prediction by leaving the context out.
    """

    network: nn.Module
    wanted: float

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        told = torch.zeros(len(x), LABEL_CHANNELS, dtype=x.dtype, device=x.device)
        if context is not None:
            told[:, 0], told[:, 1] = self.wanted, 1.0
        return labelled(self.network, x, timestep, told)


def labelled(network: nn.Module, x: Tensor, timestep: Tensor, told: Tensor) -> Tensor:
    """Predicted noise of plans (batch, horizon, state), with labels (batch, 2) as channels."""
    frames = told[:, None].expand(-1, x.shape[1], -1)
    found: Tensor = network(torch.cat([x, frames], dim=-1), timestep)
    return found[..., : x.shape[-1]]


def no_label(context: Context) -> Context:
    """The context of the prediction without a label."""
    return None


@dataclass(frozen=True)
class DecisionDiffuser:
    """See :class:`muninn_bench.planners.policy.Recipe`.

    Attributes:
        executed: steps of a plan that are carried out before the next plan.
        scale: of classifier-free guidance; the paper's 1.6.
        dropped: share of labels that the network is not told in training.
        wanted_share: the wanted return is one that this share of the data stays below.
        widths, inverse_width: of the U-Net, and of the inverse dynamics.
    """

    observation: int
    action: int
    horizon: int = 32
    executed: int = 1
    steps: int = 20
    scale: float = 1.6
    dropped: float = 0.25
    wanted_share: float = 0.95
    widths: tuple[int, ...] = (64, 128, 256)
    inverse_width: int = 256
    time_width: int = 64
    discount: float = 0.99
    planner: ClassVar[str] = "decision-diffuser"

    def networks(self) -> nn.ModuleDict:
        """``plan``, which predicts the noise, and ``inverse``, which predicts actions."""
        config = UnetConfig(
            channels=self.observation + LABEL_CHANNELS,
            widths=self.widths,
            blocks=1,
            middle_blocks=1,
            time_width=self.time_width,
            predicts="epsilon",
        )
        width = self.inverse_width
        inverse = Mlp((2 * self.observation, width, width, width, self.action))
        plan = TemporalUnet(config, Schedule.cosine(self.steps), self.horizon)
        return nn.ModuleDict({"plan": plan, "inverse": inverse})

    def coordinates(self, frames: Tensor) -> Coordinates:
        """The range of the data is [-1, 1], which samplers clip to."""
        return range_coordinates(frames)

    def policy(self, agent: Agent) -> Policy:
        """The inverse dynamics of the first planned states are executed."""
        plan, inverse = agent.networks["plan"], agent.networks["inverse"]
        sampler = ddim(Schedule.cosine(self.steps), kind="epsilon", clip=CLIP)
        denoiser = LabelledDenoiser(plan, agent.numbers["wanted"])
        planner = Planner(
            ClassifierFreeGuidance(denoiser, no_label, self.scale),
            sampler,
            (self.horizon, self.observation),
            condition=inpaint_start,
            device=next(plan.parameters()).device,
        )
        view = partial(first_states, self.executed)
        read = partial(_read, inverse, view)
        return Policy(planner, agent.coordinates, self.observation, read, view, CLIP)


def first_states(executed: int, plans: Tensor) -> Tensor:
    """States before and after the executed steps, (batch, executed + 1, state)."""
    return plans[:, : executed + 1]


def between(states: Tensor) -> Tensor:
    """States before and after each step, (batch, steps, 2 state), of (batch, steps + 1, state)."""
    return torch.cat([states[:, :-1], states[:, 1:]], dim=-1)


@torch.no_grad()
def _read(inverse: nn.Module, view: partial[Tensor], plans: Tensor, contexts: Tensor) -> Tensor:
    found: Tensor = beside(inverse, plans)(between(view(plans)))
    return found
