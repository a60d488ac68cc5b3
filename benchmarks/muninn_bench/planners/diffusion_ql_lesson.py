"""What Diffusion-QL learns: recorded actions, and to prefer those that the critics hold for good.

The averaged weights are the target networks: of the critics, and of the actor whose actions the
critics are asked about. The original takes a million steps, each of which samples two actions, one
with gradients through the whole chain. To make as many steps in minutes, three things differ.
Critics begin with the returns of the data, while the actor clones. The actions that the targets
need are drawn for all observations at once, now and then. And the preferred action is the clean
action that one evaluation implies, as in Efficient Diffusion Policies (Kang et al. 2023).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from muninn.model.sampler import Sampler
from muninn_bench.networks.runs import Runs
from muninn_bench.planners.agent_lesson import CHECKED, AgentLesson, Hidden
from muninn_bench.planners.diffusion_ql import DiffusionQL, vp_schedule

RENEWED, TOGETHER = 2000, 65_536
"""Steps after which the actions of the targets are drawn again, and how many are at once."""

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
        self._cloning, self._seed, self._steps = True, seed, 0
        # Of all recorded observations; until the critics ask for them they are of no use.
        self._next = torch.zeros(len(self._experience.observations), recipe.action, device=device)

    def trail(self, average: nn.Module, spent: float) -> None:
        """Take the averaged weights as target networks; draw its actions when it is time."""
        self._target, self._cloning = average, spent < self._recipe_ql.cloning
        if not self._cloning:
            if self._steps % RENEWED == 0:
                generator = torch.Generator(self._device).manual_seed(self._seed + self._steps)
                seen = torch.split(self._experience.observations, TOGETHER)
                self._next = torch.cat([self._acted(part, generator) for part in seen])
            self._steps += 1

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Transitions, the target's actions after them, noise and timesteps of recorded actions."""
        steps = self._experience.transitions(count, generator)
        return *steps, self._next[steps.place], *self._hidden.draw(steps.action[:, None], generator)

    def validation(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Transitions of the episodes kept out of training."""
        steps = self._held_out.transitions(CHECKED, generator)
        then = self._acted(steps.after, generator)
        return *steps, then, *self._hidden.draw(steps.action[:, None], generator)

    def loss(self, network: Any, *batch: Tensor) -> Tensor:
        """Errors of both critics, the error of the noise of recorded actions, less the preference.

        The preference is the critics' mean value of the actor's actions, over its size (equation 3
        and section 4 of the paper).
        """
        seen, action, reward, after, goes_on, returns, _, then, noise, t = batch
        recipe, scale = self._recipe_ql, self._numbers["reward_scale"]
        aim = scale * returns
        if not self._cloning:
            with torch.no_grad():
                worth = self._target["critic"](after, then).amin(dim=0)
                aim = scale * reward + recipe.discount * goes_on * worth
        bellman: Tensor = (network["critic"](seen, action) - aim).square().mean(dim=1).sum()
        noisy = self._hidden.noisy(action[:, None], noise, t)
        predicted = network["actor"](noisy, t, seen)
        loss: Tensor = bellman + (predicted - noise).square().mean()
        if self._cloning:
            return loss
        now = self._hidden.clean(noisy, predicted, t).clamp(-1.0, 1.0)[:, 0]
        # The critics judge here and do not learn: their weights are constants.
        fixed = {name: each.detach() for name, each in network["critic"].named_parameters()}
        value: Tensor = functional_call(network["critic"], fixed, (seen, now))
        size = value.detach().abs().mean().clamp_min(1e-6)
        return loss - recipe.preference * value.mean() / size

    @torch.no_grad()
    def _acted(self, seen: Tensor, generator: torch.Generator) -> Tensor:
        """One action of the target's actor for each observation, (rows, action)."""
        shape = (len(self._sampler), len(seen), 1, self._recipe_ql.action)
        draws = torch.randn(shape, generator=generator, device=self._device)
        return draw_actions(self._target["actor"], self._sampler, seen, draws)[:, 0]


def draw_actions(actor: Any, sampler: Sampler, seen: Tensor, draws: Tensor) -> Tensor:
    """Actions (batch, 1, action) by the sampler itself.

    The ``draws`` are x_T and the noise of every step but the last, (steps, batch, 1, action).
    """
    x = draws[0]
    told = torch.tensor([int(place.timestep) for place in sampler.steps], device=x.device)
    times = actor.time(told)
    for step, place in enumerate(sampler.steps):
        predicted = actor.at(x, times[step].expand(len(x), -1), seen)
        x = sampler.step(x, predicted, step, draws[step + 1] if place.draws_noise else None)
    return x
