"""Episodes with a known chance of success, for promises of outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certify_cases import contexts
from muninn.certify.outcomes import Outcomes

PLANS = 2


def reach(plan: Callable[[Any], Tensor], seed: int) -> bool:
    """Plans twice; succeeds where the end of the plan, disturbed, lies on the right."""
    world = np.random.default_rng(seed)
    context = contexts(1, seed=int(world.integers(2**31)))
    for _ in range(PLANS):
        trajectory = plan(context)
    return bool(trajectory[0, -1, 0] + 0.3 * world.normal() > 0.0)


def careless(plan: Callable[[Any], Tensor], seed: int) -> float:
    """Draws from a generator that nobody seeds."""
    plan(contexts(1, seed=seed % 2**31))
    return float(np.random.default_rng().random())


def distance(plan: Callable[[Any], Tensor], seed: int) -> float:
    """A score in [0, 1], larger is better."""
    trajectory = plan(contexts(1, seed=seed % 2**31))
    return float(torch.exp(-trajectory[0, -1].abs().mean()))


def outcomes(**changes: Any) -> Outcomes:
    settings: dict[str, Any] = {"run": reach, "count": 100, "together": 20, "tune": 20}
    return Outcomes(**{**settings, **changes})
