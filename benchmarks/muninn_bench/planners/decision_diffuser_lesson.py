"""What Decision Diffuser learns: the noise in windows of states, and the actions between states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from muninn.model.schedule import Schedule
from muninn_bench.networks.experience import Experience
from muninn_bench.networks.runs import Runs
from muninn_bench.planners.agent_lesson import CHECKED, AgentLesson, Hidden, weighted_error
from muninn_bench.planners.decision_diffuser import DecisionDiffuser, between, labelled


class DecisionLesson(AgentLesson):
    """See :class:`muninn_bench.networks.trainer.Lesson`; arguments as for the base class."""

    def __init__(
        self,
        recipe: DecisionDiffuser,
        task: str,
        runs: Runs,
        limit: int,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        super().__init__(recipe, task, runs, limit, device, seed)
        self._sizes, self._dropped = recipe.observation, recipe.dropped
        self._hidden = Hidden(Schedule.cosine(recipe.steps), device)
        mean, spread, wanted = self._experience.return_range(recipe.wanted_share)
        self._mean, self._spread = mean, max(spread, 1e-6)
        self._numbers = {"wanted": (wanted - mean) / self._spread}
        self._weight = torch.ones(recipe.horizon, recipe.observation, device=device)
        self._weight[0] = 0.0

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Windows with their actions, noise, timesteps and labels."""
        return self._drawn(self._experience, count, generator)

    def validation(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Windows of the episodes kept out of training."""
        return self._drawn(self._held_out, CHECKED, generator)

    def loss(self, network: Any, *batch: Tensor) -> Tensor:
        """Error of the noise, and of the action after the first state; they share no weights."""
        window, noise, t, told = batch
        clean = window[..., : self._sizes]
        noisy = self._hidden.noisy(clean, noise, t)
        noisy[:, 0] = clean[:, 0]
        plan = weighted_error(labelled(network["plan"], noisy, t, told), noise, self._weight)
        acted: Tensor = network["inverse"](between(clean[:, :2]))[:, 0]
        return plan + (acted - window[:, 0, self._sizes :]).square().mean()

    def _drawn(
        self, experience: Experience, count: int, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        window, returns = experience.windows(count, generator)
        noise, t = self._hidden.draw(window[..., : self._sizes], generator)
        kept = torch.rand(count, generator=generator, device=self._device) >= self._dropped
        label = (returns - self._mean) / self._spread
        told = torch.stack([label, torch.ones_like(label)], dim=1) * kept[:, None]
        return window, noise, t, told
