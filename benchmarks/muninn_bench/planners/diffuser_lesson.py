"""What Diffuser learns: clean plans, or their noise, from windows of recorded runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.runs import (
    PlanSource,
    Runs,
    largest_value,
    split_runs,
    standard_limits,
    symmetric_limits,
)
from muninn_bench.networks.teacher import (
    Network,
    NetworkConfig,
    Teacher,
    build_network,
    save_teacher,
)
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.planners.diffuser import inpaint_ends


def plan_loss(
    network: Network, alpha_bar: Tensor, states: int, clean: Tensor, noise: Tensor, t: Tensor
) -> Tensor:
    """Mean squared error in units of the output scaling, per plan: (batch,).

    The error at timestep ``t`` is divided by ``gain[t]``, which is the loss of the learned
    correction with equal weight at every step. For a network that predicts the clean plan the last,
    least noisy steps are so learned as well. For one that predicts the noise it is the first steps:
    plain squared error of the noise weighs them by ``abar[t]``, 2e-7 to 1, but the route is chosen
    there, and the sampler multiplies an error of the noise by ``1 / sqrt(abar[t])`` to get a plan.
    A U-Net that predicts the noise has gain 1: its loss is that plain squared error, as in DDPM.

    The noise to predict is what the inpainted input contains, ``(x - sqrt(abar) x0) / sqrt(1 -
    abar)``. Away from the inpainted entries this is the drawn noise; at them the drawn noise was
    overwritten, and no network could tell it. ``states`` is how many channels are inpainted.
    """
    kept = alpha_bar[t][:, None, None]
    signal, spread = kept.sqrt().float(), (1.0 - kept).sqrt().float()
    noisy = signal * clean + spread * noise
    noisy = inpaint_ends(noisy, clean[:, :: clean.shape[1] - 1, :states])
    target = clean if network.predicts == "sample" else (noisy - signal * clean) / spread
    error: Tensor = (network(noisy, t) - target) / network.gain[t][:, None, None]
    return error.square().mean(dim=(1, 2))


class DiffuserLesson:
    """See :class:`muninn_bench.networks.trainer.Lesson`.

    Args:
        runs: recorded; they say which channels are inpainted, and the time between frames.
        config: a U-Net predicts what its settings say in coordinates of [-1, 1], a Transformer the
            noise in standardised ones.
        seed: of the weights and the held-out plans.
        steps: of the cosine schedule.
        whole_share: of plans that start at a run's start; the others start on the way.
        held_out: share of runs, the last ones, kept out of training.

    Raises:
        InputError: fewer than two runs, or frames that the network does not fit.
    """

    def __init__(
        self,
        runs: Runs,
        config: NetworkConfig,
        horizon: int,
        device: torch.device,
        *,
        seed: int = 0,
        steps: int = 100,
        whole_share: float = 0.6,
        held_out: float = 0.01,
    ) -> None:
        if runs.frames.shape[1] != config.channels:
            raise InputError(
                f"the runs have frames of {runs.frames.shape[1]} channels, the network "
                f"{config.channels}; set the network's channels"
            )
        torch.manual_seed(seed)
        bounded = isinstance(config, UnetConfig)
        low, high = symmetric_limits(runs) if bounded else standard_limits(runs)
        clip = 1.0 if bounded else largest_value(runs, low, high)
        schedule = Schedule.cosine(steps)
        self.kind = f"diffuser {config}"
        self.network = build_network(config, schedule, horizon).to(device)
        self._teacher = Teacher(
            self.network, low, high, horizon, schedule, runs.frame_seconds, clip
        )
        self._alpha_bar = torch.from_numpy(schedule.alpha_bar).to(device)
        self._state_channels = runs.state_channels
        training, rest = split_runs(runs, held_out)
        self._source = PlanSource(training, low, high, horizon, device)
        self._share, self._device = whole_share, device
        check = PlanSource(rest, low, high, horizon, device)
        count = max(512, 4 * (len(rest.offsets) - 1))
        generator = torch.Generator(device).manual_seed(seed + 1)
        self._held_out = check.draw(count, whole_share, generator)

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Plans, noise and timesteps."""
        return self._noisy(self._source.draw(count, self._share, generator), generator)

    def validation(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Plans of the runs kept out of training."""
        return self._noisy(self._held_out, generator)

    def loss(self, network: Any, *batch: Tensor) -> Tensor:
        """Mean over plans."""
        return plan_loss(network, self._alpha_bar, self._state_channels, *batch).mean()

    def save(self, network: nn.Module, out: Path) -> Path:
        """``teacher.safetensors``."""
        assert isinstance(network, Network)
        path = out / "teacher.safetensors"
        save_teacher(path, replace(self._teacher, network=network))
        return path

    def _noisy(self, plans: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        steps, count = self._teacher.schedule.steps, (len(plans),)
        t = torch.randint(steps, count, generator=generator, device=self._device)
        noise = torch.randn(plans.shape, generator=generator, device=self._device)
        return plans, noise, t
