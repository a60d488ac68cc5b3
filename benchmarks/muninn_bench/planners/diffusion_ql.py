"""Diffusion-QL (Wang et al. 2023): actions drawn by diffusion, the best by a critic executed.

One call draws all candidates: a plan is ``(candidates, action)``, its rows are drawn apart, and
the network is evaluated once a step for all of them. So whatever the library does to a call it does
to all candidates together, and the metric compares the actions that are executed after the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddpm
from muninn_bench.networks.agent import Agent
from muninn_bench.networks.coordinates import Coordinates, joined, standard_coordinates
from muninn_bench.networks.mlp import ActionDenoiser, TwinCritic
from muninn_bench.planners.policy import Policy, beside

_LEAST, _MOST = 0.1, 10.0
"""Rates of the variance-preserving process (Song et al. 2021), as Diffusion-QL's code has them."""


def vp_schedule(steps: int) -> Schedule:
    """The variance-preserving schedule of the original, which reaches noise in few steps.

    >>> bool(vp_schedule(10).alpha_bar[-1] < 0.01)
    True
    """
    t = np.arange(1, steps + 1)
    rates = _LEAST / steps + 0.5 * (_MOST - _LEAST) * (2 * t - 1) / steps**2
    return Schedule.from_betas(f"vp({_LEAST:g}, {_MOST:g})", 1.0 - np.exp(-rates))


@dataclass(frozen=True)
class CandidateDenoiser:
    """A network of actions, told the observation."""

    network: nn.Module

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        prediction: Tensor = self.network(x, timestep, context)
        return prediction


@dataclass(frozen=True)
class DiffusionQL:
    """See :class:`muninn_bench.planners.policy.Recipe`.

    Attributes:
        candidates: actions of one call, of which the critic chooses one.
        width: of all hidden layers.
        preference: weight of the critic in the actor's loss, ``eta`` of the original.
        cloning: share of the training before any preference: the actor learns recorded actions, the
            critics the returns that followed them.
    """

    observation: int
    action: int
    steps: int = 10
    candidates: int = 64
    width: int = 256
    discount: float = 0.99
    preference: float = 1.0
    cloning: float = 0.2
    horizon: int = 1
    planner: ClassVar[str] = "diffusion-ql"

    def networks(self) -> nn.ModuleDict:
        """``actor``, which predicts the noise of an action, and ``critic``."""
        sizes = (self.observation, self.action, self.width)
        return nn.ModuleDict({"actor": ActionDenoiser(*sizes), "critic": TwinCritic(*sizes)})

    def coordinates(self, frames: Tensor) -> Coordinates:
        """Standardised observations; actions as they are, within [-1, 1]."""
        ones = torch.ones(self.action)
        seen = standard_coordinates(frames[:, : self.observation])
        return joined(seen, Coordinates(-ones, ones))

    def sampler(self) -> Sampler:
        """DDPM over every training step."""
        return ddpm(vp_schedule(self.steps), kind="epsilon", clip=1.0)

    def policy(self, agent: Agent) -> Policy:
        """The candidate with the largest of the critics' smaller estimates is executed."""
        actor, critic = agent.networks["actor"], agent.networks["critic"]
        planner = Planner(
            CandidateDenoiser(actor),
            self.sampler(),
            (self.candidates, self.action),
            device=next(actor.parameters()).device,
        )
        read, choice = partial(chosen, critic), partial(best, critic)
        return Policy(planner, agent.coordinates, self.observation, read, choice=choice)


def chosen(critic: nn.Module, plans: Tensor, contexts: Tensor) -> Tensor:
    """The best candidates, (batch, 1, action), of plans (batch, candidates, action)."""
    rows = torch.arange(len(plans), device=plans.device)
    return plans[rows, best(critic, plans, contexts)][:, None]


@torch.no_grad()
def best(critic: nn.Module, plans: Tensor, contexts: Tensor) -> Tensor:
    """The place of the best candidate of each plan (batch, candidates, action), (batch,).

    Raises:
        InputError: the critic returns a value that is not finite.
    """
    told = contexts.to(plans.device)[:, None].expand(-1, plans.shape[1], -1)
    worth: Tensor = beside(critic, plans)(told, plans).amin(dim=0)
    if not torch.isfinite(worth).all():
        raise InputError(
            "the critic returned a value that is not finite, so that no candidate is the best; "
            "train it again, with a lower learning rate"
        )
    return worth.argmax(dim=1)
