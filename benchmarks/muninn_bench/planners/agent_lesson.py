"""What lessons of policies share: recorded episodes, the noise they are hidden in, and the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muninn.model.schedule import Schedule
from muninn_bench.networks.agent import Agent, save_agent
from muninn_bench.networks.experience import Experience
from muninn_bench.networks.runs import Runs, split_runs
from muninn_bench.planners.policy import Recipe

HELD_OUT = 0.02
"""Share of episodes, the last ones, kept out of training."""

CHECKED = 2048
"""Examples of a validation loss."""


class Hidden:
    """Clean values hidden in noise, at random timesteps of a schedule."""

    def __init__(self, schedule: Schedule, device: torch.device) -> None:
        kept = torch.from_numpy(schedule.alpha_bar)
        self.signal = kept.sqrt().float().to(device)
        self.spread = (1.0 - kept).sqrt().float().to(device)

    def draw(self, clean: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise of the shape of ``clean`` (batch, frames, channels), and timesteps (batch,)."""
        form: Any = {"generator": generator, "device": clean.device}
        timesteps = torch.randint(len(self.signal), (len(clean),), **form)
        return torch.randn(clean.shape, **form), timesteps

    def noisy(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Clean values hidden in noise."""
        return self.signal[t][:, None, None] * clean + self.spread[t][:, None, None] * noise

    def clean(self, noisy: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """The clean values that noisy ones and their noise imply."""
        return (noisy - self.spread[t][:, None, None] * noise) / self.signal[t][:, None, None]


class AgentLesson:
    """The common part of a :class:`muninn_bench.networks.trainer.Lesson` of a policy.

    Args:
        recipe: of the planner.
        task: its name, which the file records.
        runs: frames of observation, action and reward.
        limit: frames of an episode that the clock ended.
        seed: of the weights.

    Raises:
        InputError: fewer than two episodes, values that are not finite, or no action in a frame.
    """

    def __init__(
        self, recipe: Recipe, task: str, runs: Runs, limit: int, device: torch.device, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.kind = f"{recipe.planner} on {task}: {recipe}"
        self.network: nn.Module = recipe.networks().to(device)
        self._task, self._recipe, self._device = task, recipe, device
        self._coordinates = recipe.coordinates(torch.from_numpy(runs.frames[:, :-1]))
        training, rest = split_runs(runs, HELD_OUT)

        def recorded(part: Runs) -> Experience:
            return Experience(
                part, self._coordinates, recipe.horizon, limit, recipe.discount, device
            )

        self._experience, self._held_out = recorded(training), recorded(rest)
        self._numbers: dict[str, float] = {}

    def save(self, network: nn.Module, out: Path) -> Path:
        """``agent.safetensors``."""
        assert isinstance(network, nn.ModuleDict)
        path = out / "agent.safetensors"
        agent = Agent(
            self._task,
            self._recipe.planner,
            network,
            self._coordinates,
            self._recipe.steps,
            self._numbers,
        )
        save_agent(path, agent)
        return path


def weighted_error(predicted: Tensor, noise: Tensor, weight: Tensor) -> Tensor:
    """Mean squared error of predicted noise (batch, frames, channels), weighted (frames, channels).

    Entries of weight zero are written over by the sampler: nothing is asked of them.
    """
    return ((predicted - noise).square() * weight).mean()
