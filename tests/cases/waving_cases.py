"""A planner whose calls are easy but for some: where it pays to look at each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from analytic import levels
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.model.planner import Planner
from muninn.model.solvers import euler

RARE: dict[str, Any] = {"tolerance": 0.05, "share": 0.03}


@dataclass(frozen=True, eq=False)
class Waving:
    """A velocity that swings as fast as the context says, whatever the state."""

    sampler: Any

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor, /) -> Tensor:
        _, noise = levels(self.sampler, timestep, x)
        speed, phase = context.double().view(len(x), 2, 1, 1).unbind(1)
        return (torch.sin(speed * noise + phase) * torch.ones_like(x)).to(x.dtype)


def waving_contexts(count: int, hard: float, fastest: float = 40.0, seed: int = 0) -> Tensor:
    """Speed and phase of calls of which a share is hard; the others do not swing."""
    generator = torch.Generator().manual_seed(seed)
    speed = fastest * (0.5 + 0.5 * torch.rand(count, generator=generator))
    speed[torch.rand(count, generator=generator) > hard] = 0.0
    phase = 6.3 * torch.rand(count, generator=generator)
    return torch.stack([speed, phase], dim=1)


def waving_planner(steps: int = 30) -> Planner:
    sampler = euler(steps)
    return Planner(Waving(sampler), sampler, (4, 2))


def waving(count: int, hard: float, **more: Any) -> PairedCalls:
    """Calls of which a share is hard."""
    return PairedCalls(waving_planner(), waving_contexts(count, hard, **more), count, rms_step, 1)
