"""A planner that acts: what it is told of an observation, and the actions that a plan means."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor, nn

from muninn.certify.metrics import Metric
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn_bench.networks.agent import Agent
from muninn_bench.networks.coordinates import Coordinates

Act = Callable[[Tensor, Tensor], Tensor]
"""``act(plans, contexts)``: actions (batch, executed, action) in the network's coordinates."""


@dataclass(frozen=True)
class Policy:
    """A planner with its way into the world and back.

    Attributes:
        planner: a context is one observation a row, (batch, observation), normalised.
        coordinates: of an observation, then of an action.
        observation: how many channels it has.
        read: the actions that plans mean, normalised.
        view: the part of plans that ``read`` looks at, where that is an affine function of them.
        bound: on normalised observations. What the data never showed, a kitchen knob that was
            always still, would otherwise be told as a number that no network has seen.
        choice: ``choice(plans, contexts)``, the row of each plan that is executed, (batch,), where
            a plan is a set of candidates.
    """

    planner: Planner
    coordinates: Coordinates
    observation: int
    read: Act
    view: Callable[[Tensor], Tensor] | None = None
    bound: float | None = None
    choice: Callable[[Tensor, Tensor], Tensor] | None = None

    def context(self, observation: FloatArray) -> Tensor:
        """What the planner is told, (1, observation)."""
        seen = torch.from_numpy(observation).float()[None]
        told = self.coordinates.normalise(seen)
        return told if self.bound is None else told.clamp(-self.bound, self.bound)

    def act(self, plans: Tensor, contexts: Tensor) -> Tensor:
        """Actions (batch, executed, action) of plans, as the world takes them: within [-1, 1].

        Raises:
            InputError: an action is not finite.
        """
        read = self.read(plans, contexts.to(plans.device))
        found = self.coordinates.after(self.observation).unnormalise(read)
        if not torch.isfinite(found).all():
            raise InputError(
                "a plan gives an action that is not finite; check the weights of the planner and "
                "the observations it is shown"
            )
        return found.clamp(-1.0, 1.0)

    def metric(self) -> Metric:
        """Largest difference of an executed action in any channel; actions are within [-1, 1]."""
        executed_action = partial(_apart, self)
        executed_action.__qualname__ = "executed_action"  # type: ignore[attr-defined]
        executed_action.unit = "of an action within [-1, 1]"  # type: ignore[attr-defined]
        executed_action.view = self.view  # type: ignore[attr-defined]
        return executed_action


def _apart(policy: Policy, full: Tensor, fast: Tensor, context: Tensor) -> Tensor:
    apart = policy.act(full, context) - policy.act(fast, context)
    return apart.abs().flatten(1).amax(dim=1)


class Recipe(Protocol):
    """How a planner is built for a world: sizes, networks, sampler.

    Attributes:
        planner: its name; a file of another planner's weights is refused.
        observation, action: channels.
        horizon: frames of the windows that it learns from.
        steps: of the noise schedule.
        discount: of rewards, a step.
    """

    @property
    def planner(self) -> str: ...

    @property
    def observation(self) -> int: ...

    @property
    def action(self) -> int: ...

    @property
    def horizon(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def discount(self) -> float: ...

    def networks(self) -> nn.ModuleDict:
        """Untrained networks, by name."""

    def coordinates(self, frames: Tensor) -> Coordinates:
        """Of an observation and an action, from all recorded ones, (frames, channels)."""

    def policy(self, agent: Agent) -> Policy:
        """The policy of trained networks."""


def beside(network: nn.Module, plans: Tensor) -> nn.Module:
    """The network where plans are; it is copied once a device."""
    own = next(itertools.chain(network.parameters(), network.buffers())).device
    return network if own == plans.device else _copied(network, plans.device)


@lru_cache(maxsize=32)
def _copied(network: nn.Module, device: torch.device) -> nn.Module:
    return copy.deepcopy(network).to(device)


def inpaint_start(x: Tensor, context: Tensor) -> Tensor:
    """Write observations (batch, observation) into the first frames, in place."""
    x[:, 0, : context.shape[-1]] = context
    return x
