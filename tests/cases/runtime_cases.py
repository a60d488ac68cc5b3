"""Samplers, programs and conditions that the tests of the runtime share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Program, Static

SHAPE = (4, 2)
SCHEDULE = Schedule.linear(100, end=0.06)  # ends at alpha_bar 0.05: noisy, yet well conditioned
ANCHORS = (0, 1, 2, 4, 7, 11, 16, 22, 24)
STEPS = 25
SHORT_GAPS = (0, 1, 2, 4, 6, 8, 11, 13, 16, 18, 20, 22, 24)


def samplers(kind: Kind | None = None) -> dict[str, Sampler]:
    diffusion: Kind = kind or "sample"
    return {
        "ddpm": ddpm(SCHEDULE, STEPS, kind=diffusion),
        "clipped ddpm": ddpm(SCHEDULE, STEPS, kind=diffusion, clip=1.5),
        "ddim": ddim(SCHEDULE, STEPS, kind=diffusion),
        "clipped ddim": ddim(SCHEDULE, STEPS, kind=diffusion, clip=1.0, keep_epsilon=True),
        "stochastic ddim": ddim(SCHEDULE, STEPS, kind=diffusion, eta=0.7),
        "euler": euler(STEPS),
        "upward euler": euler(np.linspace(0.0, 1.0, STEPS + 1).tolist()),
    }


NAMES = list(samplers())


def pin_start(x: Tensor, context: Any) -> Tensor:
    """Writes the start of every trajectory in place."""
    x[:, 0] = context if context is not None else 0.5
    return x


def pinned_copy(x: Tensor, context: Any) -> Tensor:
    """The same, on a copy."""
    return pin_start(x.clone(), context)


def gate(sampler: Sampler, threshold: float = 0.02, **fields: Any) -> Program:
    return Program(Forecast(own(sampler), 1), Adaptive(threshold, dense=2, **fields))


def own(sampler: Sampler) -> Kind:
    return "velocity" if sampler.flow else "sample"


def contexts(rows: int) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(11))


def programs(sampler: Sampler) -> dict[str, Program]:
    quantity = own(sampler)
    return {
        "static": Program(Forecast(quantity, 1), Static(ANCHORS)),
        "static without look-back": Program(Forecast(quantity, 2, False), Static(ANCHORS)),
        "adaptive": gate(sampler),
        "adaptive without look-back": Program(
            Forecast(quantity, 1, False), Adaptive(0.02, dense=2)
        ),
        "adaptive hold": Program(Forecast(quantity, 0), Adaptive(0.1, dense=2)),
    }
