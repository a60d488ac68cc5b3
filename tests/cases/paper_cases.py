"""A small planner with a closed-form split, for tests of the published method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.model.planner import Planner
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm
from muninn.paper.envelope import Envelope, fit_envelope
from muninn.paper.epsilon import eligible_steps
from muninn.paper.ghost import GhostPairs, collect_pairs
from muninn.paper.split import Probe

SHAPE = (8, 2)
STEPS = 20
SCHEDULE = Schedule.cosine(STEPS)


@dataclass
class Wave:
    """A denoiser ``core(stem)`` that is smooth, nonlinear, and counts what it runs, in rows.

    A large ``gain`` makes each entry follow the sign of its neighbour: predictions feed the error
    of their state forward, as a network does that chooses between routes.
    """

    sampler: Sampler
    gain: float = 1.0
    counts: dict[str, int] = field(default_factory=lambda: {"stem": 0, "core": 0})

    def stem(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        self.counts["stem"] += len(x)
        shift = 0.0 if context is None else context[:, None]
        return torch.tanh(self.gain * x + 0.03 * timestep[:, None, None] + shift)

    def core(self, hidden: Tensor, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        self.counts["core"] += len(x)
        clean = 0.8 * hidden.roll(1, dims=1)
        if self.sampler.kind == "sample":
            return clean
        signal, noise = self._levels(timestep, x)
        return (x - signal * clean) / noise

    def _levels(self, timestep: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = {int(step.timestep): (step.signal, step.noise) for step in self.sampler.steps}
        pairs = torch.tensor([levels[int(t)] for t in timestep], dtype=x.dtype)[:, :, None, None]
        return pairs[:, 0], pairs[:, 1]

    def feature(self, hidden: Tensor, x: Tensor) -> Tensor:
        return hidden.float().mean(dim=1)

    def __call__(self, x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        return self.core(self.stem(x, timestep, context), x, timestep, context)


def pin_start(x: Tensor, context: Any) -> Tensor:
    x[:, 0] = 0.25
    return x


def sampler(name: str = "ddim", kind: Kind = "epsilon", clip: float | None = 1.0) -> Sampler:
    make = ddim if name == "ddim" else ddpm
    return make(SCHEDULE, kind=kind, clip=clip)


def planner(
    name: str = "ddim", kind: Kind = "epsilon", clip: float | None = 1.0, gain: float = 1.0
) -> Planner:
    table = sampler(name, kind, clip)
    return Planner(Wave(table, gain), table, SHAPE, condition=pin_start)


def probe(plan: Planner) -> Probe:
    assert isinstance(plan.denoiser, Wave)
    return Probe(plan.denoiser)


def pairs(plan: Planner, calls: int = 60) -> GhostPairs:
    (found,) = collect_pairs(plan, [probe(plan)], calls, seed=3)
    return found


def envelope(plan: Planner, calls: int = 60, risk: float = 0.1) -> Envelope:
    return fit_envelope(pairs(plan, calls), risk, strict=False)


def constant_envelope(value: float, steps: int = STEPS) -> Envelope:
    """U_t(s) = value at every eligible step."""
    eligible = eligible_steps(steps)
    scores = np.tile(np.linspace(0.01, 1.0, 40)[:, None], (1, steps))
    errors = np.full((40, steps), np.nan)
    errors[:, list(eligible)] = value
    return fit_envelope(GhostPairs(scores, errors, eligible), 0.5, strict=False)
