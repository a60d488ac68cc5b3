"""Running a gap: the sampler's steps between two evaluations, on forecast predictions.

Forecasts do not depend on the state, so where a step is affine in the state (no noise, and x0
either unclipped or forecast itself) a whole gap is one weighted sum instead of a loop of small
operations. Conditioning is the caller's: it belongs to states that the network or the user sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from muninn.model.planner import Noise
from muninn.model.sampler import Kind, Sampler
from muninn.programs.forecast import Weights, weighted_sum

Columns = Callable[[Weights, int, torch.device], tuple[Tensor, ...]]

LARGEST = 1 << 20
"""Numbers per trajectory in the intermediate of a collapsed gap; larger gaps are stepped."""


def run_gap(
    sampler: Sampler,
    x: Tensor,
    weights: Weights,
    values: list[Tensor],
    first: int,
    kind: Kind,
    noise: Noise,
    rows: Tensor | slice,
    columns: Columns,
) -> Tensor:
    """State after the steps ``first``, ``first + 1``, ..., one per row of ``weights``.

    Args:
        sampler: the steps.
        x: state before step ``first``, (rows, *shape).
        weights: of the known values in the forecast of each step.
        values: known values of the forecast quantity, oldest first, each (rows, *shape).
        first: first step of the gap.
        kind: the forecast quantity.
        noise: draws of the call, for steps that add noise.
        rows: which rows of the call ``x`` holds.
        columns: tables of weights on the device; :func:`column_cache` makes one per runtime.
    """
    collapsed = sampler.collapse(first, first + len(weights), kind)
    if collapsed is None or x[0].numel() * len(weights) > LARGEST:
        for step, row in enumerate(weights, start=first):
            x = sampler.step(x, weighted_sum(row, values), step, noise.at(step, rows), kind)
        return x
    carry, effects = collapsed
    parts = columns(weights, x.ndim - 1, x.device)
    newest = values[len(values) - len(parts) :]
    forecasts = newest[0][:, None] * parts[0]
    for value, column in zip(newest[1:], parts[1:], strict=True):
        forecasts.addcmul_(value[:, None], column)
    if sampler.clip is not None:
        forecasts.clamp_(-sampler.clip, sampler.clip)
    (effect,) = columns(tuple((value,) for value in effects), x.ndim - 1, x.device)
    return (x * carry).add_(forecasts.mul_(effect).sum(dim=1))


def column_cache() -> Columns:
    """A cache of device tables that lives as long as its owner: captured graphs point into it."""
    return functools.lru_cache(maxsize=16384)(_columns)


def _columns(weights: Weights, dims: int, device: torch.device) -> tuple[Tensor, ...]:
    """Columns of a table of weights, each (gap, 1, ..., 1) with ``dims`` trailing ones."""
    table = torch.from_numpy(np.array(weights, dtype=np.float32)).to(device)
    return table.view(*table.shape, *[1] * dims).unbind(dim=1)
