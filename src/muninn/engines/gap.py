"""Running a gap: the sampler's steps between two evaluations, on forecast predictions.

:class:`Gaps` are for rows with one evaluation history. Forecasts do not depend on the state, so
where a step is affine in the state (no noise, and x0 either unclipped or forecast itself) a whole
gap is one weighted sum instead of a loop of small operations.

:func:`vector_gap` is for rows that each have their own history and steps. A gap is elementwise, so
on a GPU one Triton kernel runs the gaps of a whole batch and computes the weights on the way.

Conditioning is the caller's: it belongs to states that the network or the user sees.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from muninn.engines.kernels.optional import OptionalKernel
from muninn.errors import DenoiserError
from muninn.model.planner import Noise
from muninn.model.sampler import Kind, Sampler
from muninn.programs.forecast import Forecaster, GapWeights, smooth_variable, weighted_sum

LARGEST = 1 << 20
"""Numbers per trajectory in the intermediate of a collapsed gap; larger gaps are stepped."""

GAP = OptionalKernel("gap", "run_gaps")


# -- rows with one history -------------------------------------------------------------------------


class Gaps:
    """Runs gaps of one sampler in one forecast quantity, ``kind``.

    Its device tables live as long as it does: captured graphs point into them.
    """

    def __init__(self, sampler: Sampler, kind: Kind) -> None:
        self._sampler, self._kind = sampler, kind
        self._columns = functools.lru_cache(maxsize=16384)(_columns)

    def run(
        self,
        x: Tensor,
        weights: GapWeights,
        values: list[Tensor],
        first: int,
        noise: Noise,
        rows: Tensor | slice,
    ) -> Tensor:
        """State after the steps ``first``, ``first + 1``, ..., one per row of ``weights``.

        ``x`` is the state before, for some ``rows`` of a call with the given noise; ``values`` at
        the nodes are oldest first, each of its shape.
        """
        sampler, kind = self._sampler, self._kind
        collapsed = collapse(sampler, first, first + len(weights), kind)
        if collapsed is None or x[0].numel() * len(weights) > LARGEST:
            for step, row in enumerate(weights, start=first):
                x = sampler.step(x, weighted_sum(row, values), step, noise.at(step, rows), kind)
            return x
        carry, effects = collapsed
        parts = self._columns(weights, x.ndim - 1, x.device)
        newest = values[len(values) - len(parts) :]
        forecasts = newest[0][:, None] * parts[0]
        for value, column in zip(newest[1:], parts[1:], strict=True):
            forecasts.addcmul_(value[:, None], column)
        if sampler.clip is not None:
            forecasts.clamp_(-sampler.clip, sampler.clip)
        (effect,) = self._columns(effects, x.ndim - 1, x.device)
        return (x * carry).add_(forecasts.mul_(effect).sum(dim=1))


@functools.lru_cache(maxsize=16384)
def collapse(
    sampler: Sampler, first: int, until: int, kind: Kind
) -> tuple[float, GapWeights] | None:
    """The carry and the effects of ``carry * x + sum of effect * prediction``: the steps ``first``
    to ``until - 1``, where the sampler clips predictions of ``kind`` before they enter. None where
    a step adds noise or its clipping depends on the state."""
    carry, effects = 1.0, []
    for index in reversed(range(first, until)):
        sample_from_state, _, from_sample, from_state, effect = sampler.affine(index, kind)
        if sampler.steps[index].draws_noise:
            return None
        if sampler.clip is not None:
            if sample_from_state != 0.0 or effect != 0.0:
                return None
            effect = from_sample
        effects.append((effect * carry,))
        carry *= from_state
    return carry, tuple(reversed(effects))


def _columns(weights: GapWeights, dims: int, device: torch.device) -> tuple[Tensor, ...]:
    """Columns of a table of weights, each (gap, 1, ..., 1) with ``dims`` trailing ones."""
    table = torch.from_numpy(np.array(weights, dtype=np.float32)).to(device)
    return table.view(*table.shape, *[1] * dims).unbind(dim=1)


def difference_size(
    forecaster: Forecaster, nodes: tuple[int, ...], values: list[Tensor], horizon: int
) -> Tensor | None:
    """The size that scales the error estimate of a gap, (rows,); None with too few nodes.

    It is the norm of the forecast's highest difference of ``values``, each (rows, *shape).
    """
    weights = forecaster.difference(nodes)
    if weights is None:
        return None
    difference = weighted_sum(weights, values).flatten(1)
    size: Tensor = torch.linalg.vector_norm(difference, dim=1) / horizon**0.5
    return size


# -- rows with a history each ----------------------------------------------------------------------


@dataclass(frozen=True)
class StepTable:
    """A sampler's steps for one kind of prediction, as device tensors indexed by step.

    The six coefficients are x0 from state and prediction, and the next state from x0, state,
    prediction and noise. Without clipping x0 does not enter.
    """

    coefficients: Tensor  # (steps, 6), at least float32
    variable: Tensor  # of the polynomials, (steps,) float64: extrapolation magnifies its rounding
    clip: float | None  # bound on |x0|
    draws: Tensor  # position of a step's draw among those of a call, -1 for none, (steps,)

    @classmethod
    def of(
        cls, sampler: Sampler, kind: Kind, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> StepTable:
        """The table of a sampler; half precision is too coarse for coefficients."""
        rows = [
            [*sampler.affine(index, kind), step.from_noise if step.draws_noise else 0.0]
            for index, step in enumerate(sampler.steps)
        ]
        draws = np.array([step.draws_noise for step in sampler.steps])
        return cls(
            torch.tensor(np.array(rows), dtype=dtype, device=device),
            torch.tensor(smooth_variable(sampler), dtype=torch.float64, device=device),
            sampler.clip,
            torch.tensor(np.where(draws, draws.cumsum() - 1, -1), device=device),
        )

    def step(self, x: Tensor, prediction: Tensor, steps: Tensor, noise: Tensor | None) -> Tensor:
        """The sampler's step from ``x`` (rows, *shape), each row at its own of ``steps`` (rows,).

        ``noise`` are the draws of the call, (draws, rows, *shape), or None.
        """
        at = self.coefficients[steps].view(len(x), 6, *[1] * (x.ndim - 1)).unbind(dim=1)
        after = x * at[3] + prediction * at[4]
        if self.clip is not None:
            sample = (x * at[0] + prediction * at[1]).clamp(-self.clip, self.clip)
            after = after + sample * at[2]
        if noise is not None:
            slot = self.draws[steps]
            rows = torch.arange(len(x), device=x.device)
            after = after + noise[slot.clamp_min(0), rows] * at[5]
        return after.to(x.dtype)


def stacked_draws(sampler: Sampler, noise: Noise) -> Tensor | None:
    """The draws of a call in step order, (draws, rows, *shape), or None."""
    return torch.stack([noise.steps[i] for i in sampler.drawing]) if sampler.drawing else None


def lagrange(variable: Tensor, nodes: Tensor, known: Tensor, at: Tensor) -> Tensor:
    """Weights (rows, nodes) of the polynomial in ``variable`` (steps,) through each row's nodes.

    ``nodes`` (rows, nodes) are steps, ``known`` says which count, ``at`` is each row's step.
    """
    here, places = variable[at][:, None], variable[nodes]
    other = ~torch.eye(nodes.shape[1], dtype=torch.bool, device=nodes.device)
    counts = known[:, None, :] & other
    apart = torch.where(counts, places[:, :, None] - places[:, None, :], 1.0)
    distance = torch.where(counts, here[:, None, :] - places[:, None, :], 1.0)
    # Two unused nodes may coincide; they carry no weight either way.
    ratio = torch.where(known[:, :, None], distance / torch.where(apart == 0, 1.0, apart), 0.0)
    return ratio.prod(dim=2)


@dataclass(frozen=True)
class Past:
    """Rows before a gap, each with its own history."""

    after: Tensor  # state right after the last evaluation, (rows, *shape)
    values: Tensor  # at the nodes, newest last, (rows, nodes, *shape) float32
    nodes: Tensor  # evaluated steps, (rows, nodes)
    known: Tensor  # which of them count, (rows, nodes)
    first: Tensor  # first step of the gap, (rows,)

    def closed(self, step: Tensor, value: Tensor) -> Past:
        """The same rows once the value at ``step`` is known too."""
        return replace(
            self,
            values=torch.cat([self.values, value[:, None]], dim=1),
            nodes=torch.cat([self.nodes, step[:, None]], dim=1),
            known=torch.cat([self.known, torch.ones_like(self.known[:, :1])], dim=1),
        )


def vector_gap(table: StepTable, past: Past, until: Tensor, noise: Tensor | None) -> Tensor:
    """States after each row's steps from ``past.first`` to ``until - 1``, on its own polynomial.

    A row with ``first >= until`` (rows,) is returned as it is. ``table`` is of the forecast
    quantity; ``noise`` are the draws of the call, (draws, rows, *shape), or None. DenoiserError
    while a CUDA graph is being captured and the kernel cannot run.
    """
    x = past.after
    if x.is_cuda and x.dtype != torch.float64:  # the kernel is float32
        done: Tensor | None = GAP.run(table, past, until, noise)
        if done is not None:
            return done
    if x.is_cuda:
        _refuse_to_capture(x.dtype)
    longest = int((until - past.first).max()) if len(x) else 0
    shape = [1] * (x.ndim - 1)
    for offset in range(longest):
        at = past.first + offset
        going = (at < until).view(-1, *shape)
        at = at.clamp_max(len(table.variable) - 1)
        weights = lagrange(table.variable, past.nodes, past.known, at).float()
        forecast = (weights.view(*weights.shape, *shape) * past.values).sum(dim=1)
        x = torch.where(going, table.step(x, forecast, at, noise), x)
    return x


def _refuse_to_capture(dtype: torch.dtype) -> None:
    """Raise DenoiserError while a graph is captured: the loop reads its length on the host."""
    if torch.cuda.is_current_stream_capturing():
        reason = "are not for states in float64; use a float32 planner"
        if dtype != torch.float64:
            reason = "need Triton, which is missing or cannot build; install it and a C compiler"
        raise DenoiserError(f"adaptive plans in CUDA graphs {reason}, or use a static plan")
