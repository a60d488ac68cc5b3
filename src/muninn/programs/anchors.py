"""The best static plan as a shortest path: dynamic programming over measured segment errors.

Full compute is run on a few tuning calls and every prediction is kept. For any two anchors the
error that forecasting the gap between them would inject is then a quadratic form in the Gram
matrix of those predictions, so all segments are priced without a single further evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Kind
from muninn.model.schedule import FloatArray
from muninn.programs.forecast import Forecast, error_weights, interpolation_weights, smooth_variable
from muninn.programs.spacing import spread_steps

MOST_POSITIONS = 128  # candidate anchors; longer samplers are searched on a coarser grid


@dataclass(frozen=True)
class Chain:
    """Full compute on some calls: every state, and what the network said there.

    ``states`` before every step and at the end, (steps + 1, calls, *shape); ``predictions``
    (steps, first calls, *shape), the network's own.
    """

    states: Tensor
    predictions: Tensor


@torch.no_grad()
def full_chain(planner: Planner, context: Context, noise: Noise, keep: int, batch: int) -> Chain:
    """Full compute, ``batch`` calls together, with the predictions of the first ``keep`` calls."""
    chains: list[Tensor] = []
    said: list[Tensor] = []
    for first in range(0, len(noise.initial), batch):
        rows = torch.arange(first, min(first + batch, len(noise.initial)), device="cpu")
        own, drawn = select(context, rows), noise.select(rows.to(noise.initial.device))
        x = planner.start(drawn, own)
        states, predictions = [], []
        for step in range(len(planner.sampler)):
            states.append(x.clone())
            prediction = planner.denoiser(x, planner.timestep(step, len(x)), own)
            predictions.append(prediction[: max(keep - first, 0)].clone())
            x = planner.advance(x, prediction, step, drawn.at(step, slice(None)), own)
        chains.append(torch.stack([*states, x]))
        said.append(torch.stack(predictions))
    return Chain(torch.cat(chains, dim=1), torch.cat(said, dim=1))


def prediction_grams(planner: Planner, chain: Chain) -> dict[Kind, FloatArray]:
    """Gram matrices (calls, steps, steps) of Full's predictions in every quantity, over horizon."""
    sampler, kept = planner.sampler, chain.predictions.shape[1]
    grams: dict[Kind, FloatArray] = {}
    for kind in sampler.kinds:
        values = [
            sampler.convert(chain.states[step, :kept], prediction, step, kind).flatten(1)
            for step, prediction in enumerate(chain.predictions)
        ]
        stacked = torch.stack(values, dim=1).double()
        grams[kind] = (stacked @ stacked.transpose(1, 2)).cpu().numpy() / planner.shape[0]
    return grams


@dataclass(frozen=True)
class SegmentModel:
    """How a segment is priced."""

    # Of the error at the end of a gap: it disturbs the evaluation even where look-back repairs it.
    feed_through: float
    emphasis: float  # as of a plan


def segment_costs(
    planner: Planner,
    forecast: Forecast,
    gram: FloatArray,
    positions: list[int],
    model: SegmentModel,
) -> FloatArray:
    """Cost (positions, positions) of forecasting between two consecutive anchors; inf backwards."""
    variable = smooth_variable(planner.sampler)
    weights = error_weights(planner.sampler, forecast.quantity, model.emphasis)
    weights = np.where(np.isfinite(weights), weights, 0.0)

    def gap_error(begin: int, end: int, closed: bool) -> FloatArray:
        """Coefficients (steps,) on the true predictions whose sum is the error of a gap.

        ``closed`` gaps are repaired: their end is known. Earlier nodes are assumed as far apart as
        this gap is long, as they are in a smooth plan.
        """
        spacing = end - begin
        nodes = sorted({max(begin - spacing * back, 0) for back in range(forecast.order + 1)})
        nodes += [end] * closed
        gap = np.arange(begin + 1, end)
        row = np.zeros_like(variable)
        row[gap] = weights[gap]
        if gap.size:
            row[nodes] -= weights[gap] @ interpolation_weights(variable[nodes], variable[gap])
        return row

    usable = np.nan_to_num(gram)
    costs = np.full((len(positions), len(positions)), np.inf)
    for place, begin in enumerate(positions[:-1]):
        ends = positions[place + 1 :]
        price = _size(np.stack([gap_error(begin, end, False) for end in ends]), usable)
        if forecast.look_back:
            repaired = np.stack([gap_error(begin, end, True) for end in ends])
            price = _size(repaired, usable) + model.feed_through * price
        costs[place, place + 1 :] = price
    return costs


def _size(rows: FloatArray, gram: FloatArray) -> FloatArray:
    """80th percentile over calls of ``|sum_t row_t prediction_t|``, for each row.

    A mean would spend evaluations on the few calls at a fork; a median forgets the hard ones.
    """
    squares = np.einsum("crs,rs->rc", np.einsum("csu,ru->crs", gram, rows, optimize=True), rows)
    size: FloatArray = np.quantile(np.sqrt(np.maximum(squares, 0.0)), 0.8, axis=1)
    return size


def anchor_positions(steps: int) -> list[int]:
    """Candidate anchors: every step, or an even grid of a long sampler."""
    return list(range(steps) if steps <= MOST_POSITIONS else spread_steps(steps, MOST_POSITIONS))


def cheapest_anchors(costs: FloatArray, positions: list[int], most: int) -> dict[int, list[int]]:
    """The cheapest anchors for every number of evaluations from 2 to ``most``.

    Shortest path with a fixed number of edges, first to last position, costs added up.
    """
    count = len(positions)
    best = np.full(count, np.inf)
    best[0] = 0.0
    parents: list[np.ndarray] = []
    plans: dict[int, list[int]] = {}
    for evaluations in range(2, min(most, count) + 1):
        through = best[:, None] + costs
        parent = through.argmin(axis=0)
        best = through[parent, np.arange(count)]
        parents.append(parent)
        if not np.isfinite(best[-1]):
            continue
        at, path = count - 1, [count - 1]
        for layer in reversed(parents):
            at = int(layer[at])
            path.append(at)
        plans[evaluations] = [positions[place] for place in reversed(path)]
    return plans
