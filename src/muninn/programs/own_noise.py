"""The noise that a stochastic sampler itself would have added by each state of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.programs.table import Table, nearest_steps


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are taken in: half precision is too coarse."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def noise_pieces(sampler: Sampler, steps: list[int]) -> list[tuple[float, dict[int, float]]]:
    """How the sampler's own noise reaches each state: ``N_k = carry * N_{k-1} + sum w_i xi_i``.

    ``steps`` are those of the states 1 ... K - 1, then the number of steps. A step passes noise on
    as it passes the state on while x0 is held, which is what the sampler does with its noise where
    the clean sample does not change.
    """
    pieces, first = [], 0
    for until in steps:
        carry, weights = 1.0, dict[int, float]()
        for index in reversed(range(first, until)):
            step = sampler.steps[index]
            if step.draws_noise:
                weights[index] = step.from_noise * carry
            carry *= sampler.unclipped(index, "sample")[0]
        pieces.append((carry, weights))
        first = until
    return pieces


def propagated(sampler: Sampler, noise: Noise) -> list[Tensor]:
    """The sampler's own noise in the state after each of its steps."""
    total = torch.zeros_like(noise.initial, dtype=sum_dtype(noise.initial.dtype))
    found = []
    for carry, own in noise_pieces(sampler, list(range(1, len(sampler) + 1))):
        total = carry * total
        for draw, weight in own.items():
            total = total.add(noise.steps[draw], alpha=weight)
        found.append(total)
    return found


class OwnNoise:
    """The noise that the sampler itself would have added by each state of a table."""

    def __init__(self, planner: Planner, table: Table) -> None:
        steps = nearest_steps(planner.sampler, table.states)
        self._weights = table.noise
        self._pieces = []
        for carry, own in noise_pieces(planner.sampler, [*steps[1:], len(planner.sampler)]):
            form = (len(own), *[1] * (len(planner.shape) + 1))
            weights = torch.tensor(
                list(own.values()), dtype=sum_dtype(planner.dtype), device=planner.device
            )
            self._pieces.append((carry, list(own), weights.view(form)))

    def rows(self, noise: Noise) -> list[Tensor]:
        """The noise in each of the states 1 ... K, unweighed."""
        total, found = torch.zeros_like(noise.initial, dtype=sum_dtype(noise.initial.dtype)), []
        for carry, draws, weights in self._pieces:
            total = total * carry
            if draws:
                drawn = torch.stack([noise.steps[step] for step in draws]).to(total.dtype)
                total = total + (drawn * weights).sum(dim=0)
            found.append(total)
        return found

    def add(self, sums: Tensor, noise: Noise) -> None:
        """Add it to the first sums, which become the states."""
        for at, (row, weight) in enumerate(zip(self.rows(noise), self._weights, strict=True)):
            sums[at].add_(row, alpha=weight)
