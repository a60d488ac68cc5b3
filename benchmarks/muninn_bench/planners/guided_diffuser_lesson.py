"""What guided Diffusers learn: the noise in windows of episodes, and the returns of noisy ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.runs import Runs
from muninn_bench.planners.agent_lesson import CHECKED, AgentLesson, Hidden, weighted_error
from muninn_bench.planners.guided_diffuser import AdaptDiffuser, GuidedDiffuser

ACTION_WEIGHT = 10.0
"""Of the executed actions in the loss, as in Diffuser's code: they are what a plan is for."""


class GuidedLesson(AgentLesson):
    """See :class:`muninn_bench.networks.trainer.Lesson`; arguments as for the base class."""

    def __init__(
        self,
        recipe: GuidedDiffuser,
        task: str,
        runs: Runs,
        limit: int,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        super().__init__(recipe, task, runs, limit, device, seed)
        self._guided = recipe
        self._hidden = Hidden(Schedule.cosine(recipe.steps), device)
        mean, spread, _ = self._experience.return_range(1.0)
        self._numbers = {"return_mean": mean, "return_spread": max(spread, 1e-6)}
        weight = torch.ones(recipe.horizon, recipe.observation + recipe.action, device=device)
        weight[: recipe.executed, recipe.observation :] = ACTION_WEIGHT
        weight[0, : recipe.observation] = 0.0
        self._weight = weight

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Windows, noise, timesteps, standardised returns, and whether each return is known."""
        clean, returns = self._experience.windows(count, generator)
        return self._complete(clean, returns, torch.ones_like(returns), generator)

    def validation(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Windows of the episodes kept out of training."""
        clean, returns = self._held_out.windows(CHECKED, generator)
        return self._complete(clean, returns, torch.ones_like(returns), generator)

    def loss(self, network: Any, *batch: Tensor) -> Tensor:
        """Error of the noise, and of the return where it is known; the two share no weights."""
        clean, noise, t, returns, known = batch
        noisy = self._hidden.noisy(clean, noise, t)
        noisy[:, 0, : self._guided.observation] = clean[:, 0, : self._guided.observation]
        plan = weighted_error(network["plan"](noisy, t), noise, self._weight)
        error: Tensor = network["value"](noisy, t) - returns
        return plan + (known * error.square()).sum() / known.sum()

    def _complete(
        self, clean: Tensor, returns: Tensor, known: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        standard = (returns - self._numbers["return_mean"]) / self._numbers["return_spread"]
        return clean, *self._hidden.draw(clean, generator), standard, known


class AdaptLesson(GuidedLesson):
    """A guided Diffuser that then learns from its own best plans, as AdaptDiffuser does.

    The first part of the budget is Diffuser's lesson. At each of the recipe's rounds the averaged
    network plans from recorded observations; plans that the value network holds for better than
    what was recorded there are kept, the better half of them. From then on they are half of every
    batch; the other half is recorded data, which keeps the planner near what the world does.
    """

    def __init__(
        self,
        recipe: AdaptDiffuser,
        task: str,
        runs: Runs,
        limit: int,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        super().__init__(recipe, task, runs, limit, device, seed)
        self._adapt, self._seed, self._rounds = recipe, seed, 0
        self._own: Tensor | None = None

    def trail(self, average: nn.Module, spent: float) -> None:
        """Draw plans when a round is due; after a pause the last round is drawn again."""
        due = sum(spent >= share for share in self._adapt.rounds)
        if due > self._rounds:
            self._rounds = due
            self._own = self._drawn(average)

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Recorded windows, and as many of its own where there are any."""
        clean, returns = self._experience.windows(count, generator)
        known = torch.ones_like(returns)
        if self._own is not None:
            half = count // 2
            place = torch.randint(len(self._own), (half,), generator=generator, device=self._device)
            clean[:half], known[:half] = self._own[place], 0.0
        return self._complete(clean, returns, known, generator)

    @torch.no_grad()
    def _drawn(self, average: nn.Module) -> Tensor:
        """Plans of the averaged network that are better than what was recorded, the best half."""
        assert isinstance(average, nn.ModuleDict)
        planner, value = self._guided.guided(average), average["value"]
        generator = torch.Generator(self._device).manual_seed(self._seed + 1000 * self._rounds)
        plans, gains = [], []
        for _ in range(0, self._adapt.drawn, self._adapt.together):
            recorded, _ = self._experience.windows(self._adapt.together, generator)
            found = planner.sample(recorded[:, 0, : self._guided.observation], generator=generator)
            still = torch.zeros(len(found), dtype=torch.long, device=self._device)
            gains.append(value(found, still) - value(recorded, still))
            plans.append(found)
        gain = torch.cat(gains)
        if not torch.isfinite(gain).all():
            raise InputError(
                "the value network returned a value that is not finite, so that no plan can be "
                "chosen to learn from; train it again, with a lower learning rate"
            )
        better = (gain > 0.0) & (gain >= gain.median())
        # Where guidance gained nothing the best half still keeps the lesson's promise.
        return torch.cat(plans)[better if better.any() else gain >= gain.median()]
