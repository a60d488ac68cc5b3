"""What Diffusion-QL learns: recorded actions, and to prefer those that the critics hold for good.

The averaged weights are the target networks: of the critics, and of the actor whose actions the
critics are asked about. The original starts both from nothing and needs a million small steps;
here critics begin with the returns of the data, so that few large steps do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from muninn.model.sampler import Sampler
from muninn_bench.networks.experience import Experience
from muninn_bench.networks.runs import Runs
from muninn_bench.planners.agent_lesson import CHECKED, AgentLesson, Hidden
from muninn_bench.planners.diffusion_ql import DiffusionQL, vp_schedule

REWARD = 0.1
"""Mean size of a reward in the critics' units: with a discount of .99 values are near 10."""


class DiffusionQLLesson(AgentLesson):
    """See :class:`muninn_bench.networks.trainer.Lesson`; arguments as for the base class."""

    def __init__(
        self,
        recipe: DiffusionQL,
        task: str,
        runs: Runs,
        limit: int,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        super().__init__(recipe, task, runs, limit, device, seed)
        self._recipe_ql, self._sampler = recipe, recipe.sampler()
        self._hidden = Hidden(vp_schedule(recipe.steps), device)
        scale = REWARD / max(self._experience.mean_reward(), 1e-6)
        self._numbers = {"reward_scale": scale}
        self._target: Any = self.network
        self._cloning = True

    def trail(self, average: nn.Module, spent: float) -> None:
        """Take the averaged weights as target networks; end the cloning when it is time."""
        self._target, self._cloning = average, spent < self._recipe_ql.cloning

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Transitions, noise and timesteps of their actions, and the noise of two calls."""
        return self._drawn(self._experience, count, generator)

    def validation(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Transitions of the episodes kept out of training."""
        return self._drawn(self._held_out, CHECKED, generator)

    def loss(self, network: Any, *batch: Tensor) -> Tensor:
        """Errors of both critics, the error of the noise of recorded actions, less the preference.

        The preference is the critics' mean value of actions that the actor draws now, over its
        size (equation 3 and section 4 of the paper); the gradient goes through every sampler step.
        """
        seen, action, reward, after, goes_on, returns, noise, t, *draws = batch
        recipe, scale = self._recipe_ql, self._numbers["reward_scale"]
        aim = scale * returns
        if not self._cloning:
            with torch.no_grad():
                then = draw_actions(self._target["actor"], self._sampler, after, draws[0])
                worth = self._target["critic"](after, then[:, 0]).amin(dim=0)
                aim = scale * reward + recipe.discount * goes_on * worth
        bellman: Tensor = (network["critic"](seen, action) - aim).square().mean(dim=1).sum()
        noisy = self._hidden.noisy(action[:, None], noise, t)
        cloned: Tensor = (network["actor"](noisy, t, seen) - noise).square().mean()
        if self._cloning:
            return bellman + cloned
        now = draw_actions(network["actor"], self._sampler, seen, draws[1])
        # The critics judge here and do not learn: their weights are constants.
        fixed = {name: each.detach() for name, each in network["critic"].named_parameters()}
        value = functional_call(network["critic"], fixed, (seen, now[:, 0]))
        preferred: Tensor = value.mean() / value.detach().abs().mean().clamp_min(1e-6)
        return bellman + cloned - recipe.preference * preferred

    def _drawn(
        self, experience: Experience, count: int, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        steps = experience.transitions(count, generator)
        noise, t = self._hidden.draw(steps.action[:, None], generator)
        shape = (2, len(self._sampler), *noise.shape)
        draws = torch.randn(shape, generator=generator, device=self._device)
        return *steps, noise, t, *draws


def draw_actions(actor: Any, sampler: Sampler, seen: Tensor, draws: Tensor) -> Tensor:
    """Actions (batch, 1, action) by the sampler itself, with gradients.

    The ``draws`` are x_T and the noise of every step but the last, (steps, batch, 1, action).
    """
    x = draws[0]
    # Embedded once for all rows: small kernels are what a step of this lesson waits for.
    told = torch.tensor([int(place.timestep) for place in sampler.steps], device=x.device)
    times = actor.time(told)
    for step, place in enumerate(sampler.steps):
        predicted = actor.at(x, times[step].expand(len(x), -1), seen)
        x = sampler.step(x, predicted, step, draws[step + 1] if place.draws_noise else None)
    return x
