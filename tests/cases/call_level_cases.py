"""A certificate for any program, and loops written as their frameworks write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muninn.model.planner import Noise, Planner
from muninn_bench.measure.uncalibrated import uncalibrated

SHAPE = (8, 4)


certificate_for = uncalibrated


class Network(nn.Module):
    """Called ``(x, cond, t)``; counts its evaluations; returns one buffer again and again."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.inner = nn.Linear(SHAPE[1] + 2, 32)
            self.outer = nn.Linear(32, SHAPE[1])
        self.timesteps: list[float] = []
        self.buffer = torch.empty(0)

    def forward(self, x: Tensor, cond: Tensor, t: Tensor) -> Tensor:
        self.timesteps.append(float(t.reshape(-1)[0]))
        told = torch.stack([cond.reshape(-1), t.expand(len(x)) / 100], dim=1)[:, None]
        told = told.expand(-1, SHAPE[0], -1)
        output = self.outer(torch.tanh(self.inner(torch.cat([x, told], dim=2))))
        if self.buffer.shape != output.shape:
            self.buffer = torch.empty_like(output)
        return self.buffer.copy_(output) if not output.requires_grad else output


def clamping_loop(network: Any, planner: Planner, cond: Tensor, noise: Noise) -> Tensor:
    """Diffuser's way, for networks that predict x0: clamps the output in place, and rewrites the
    timestep that it has passed."""
    x = noise.initial.clone()
    with torch.no_grad():
        timestep = torch.zeros(len(x), dtype=torch.long)
        for place, step in enumerate(planner.sampler.steps):
            timestep.fill_(int(step.timestep))
            output = network(x, cond, timestep)
            timestep.fill_(-7)
            x0 = output.clamp_(-1.0, 1.0)
            epsilon = (x - step.signal * x0) / step.noise
            x = step.from_state * x + step.from_sample * x0 + step.from_epsilon * epsilon
            if step.draws_noise:
                x = x + step.from_noise * noise.steps[place]
            output.fill_(float("nan"))
    return x
