"""Gaps of many rows at once, each row with its own steps: one kernel on a GPU, one loop elsewhere.

A gap is elementwise: every number of a trajectory goes through the same few multiplications per
step. On a GPU one Triton kernel therefore runs whole gaps of a whole batch, rows with different
evaluation histories side by side, with the polynomial's weights computed on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from muninn.engines.kernels.optional import OptionalKernel
from muninn.errors import DenoiserError
from muninn.model.planner import Noise
from muninn.model.sampler import Kind, Sampler
from muninn.programs.forecast import Forecast, smooth_variable

GAP = OptionalKernel("muninn.engines.kernels.gap", "run_gaps")


@dataclass(frozen=True)
class StepTable:
    """A sampler's steps for one kind of prediction, as device tensors indexed by step.

    Attributes:
        coefficients: (steps, 6), at least float32: x0 from state and prediction, and the next
            state from x0, state, prediction and noise. Without clipping x0 does not enter.
        variable: of the polynomials, (steps,) float64: extrapolation magnifies its rounding.
        clip: bound on |x0|, or None.
        draws: position of each step's noise draw among those of a call, -1 for none, (steps,).
    """

    coefficients: Tensor
    variable: Tensor
    clip: float | None
    draws: Tensor

    @classmethod
    def of(
        cls,
        sampler: Sampler,
        kind: Kind,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> StepTable:
        """The table of a sampler; half precision is too coarse for coefficients."""
        rows, positions = [], []
        drawn = 0
        for index, step in enumerate(sampler.steps):
            rows.append(
                [*sampler.affine(index, kind), step.from_noise if step.draws_noise else 0.0]
            )
            positions.append(drawn if step.draws_noise else -1)
            drawn += step.draws_noise
        return cls(
            torch.tensor(np.array(rows), dtype=dtype, device=device),
            torch.tensor(smooth_variable(sampler), dtype=torch.float64, device=device),
            sampler.clip,
            torch.tensor(positions, dtype=torch.long, device=device),
        )

    def step(self, x: Tensor, prediction: Tensor, steps: Tensor, noise: Tensor | None) -> Tensor:
        """The sampler's step, each row at its own ``steps`` (rows,).

        Args:
            x, prediction: (rows, *shape).
            steps: which step each row takes.
            noise: draws of the call, (draws, rows, *shape), or None.
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
    drawn = [index for index, step in enumerate(sampler.steps) if step.draws_noise]
    return torch.stack([noise.steps[step] for step in drawn]) if drawn else None


def lagrange(variable: Tensor, nodes: Tensor, known: Tensor, at: Tensor) -> Tensor:
    """Weights (rows, nodes) of the polynomial through each row's nodes, at one step per row.

    Args:
        variable: (steps,).
        nodes: step numbers, (rows, nodes).
        known: which nodes count, (rows, nodes).
        at: step of each row, (rows,).
    """
    here, places = variable[at][:, None], variable[nodes]
    width = nodes.shape[1]
    other = ~torch.eye(width, dtype=torch.bool, device=nodes.device)
    counts = known[:, None, :] & other
    apart = torch.where(counts, places[:, :, None] - places[:, None, :], 1.0)
    distance = torch.where(counts, here[:, None, :] - places[:, None, :], 1.0)
    # Two unused nodes may coincide; they carry no weight either way.
    ratio = torch.where(known[:, :, None], distance / torch.where(apart == 0, 1.0, apart), 0.0)
    return ratio.prod(dim=2)


def vector_gap(
    table: StepTable,
    x: Tensor,
    values: Tensor,
    nodes: Tensor,
    known: Tensor,
    first: Tensor,
    until: Tensor,
    noise: Tensor | None,
) -> Tensor:
    """States after each row's steps ``first`` to ``until - 1``, on its own polynomial.

    Args:
        table: of the forecast quantity.
        x: states before, (rows, *shape).
        values: at the nodes, (rows, nodes, *shape) float32.
        nodes, known: step numbers, and which of them count, (rows, nodes).
        first, until: of each row, (rows,); a row with ``first >= until`` is returned as it is.
        noise: draws of the call, (draws, rows, *shape), or None.

    Raises:
        DenoiserError: a CUDA graph is being captured, and the kernel cannot run.
    """
    if x.is_cuda and x.dtype != torch.float64:  # the kernel is float32
        done: Tensor | None = GAP.run(table, x, values, nodes, known, first, until, noise)
        if done is not None:
            return done
    if x.is_cuda:
        _refuse_to_capture(x.dtype)
    longest = int((until - first).max()) if len(x) else 0
    shape = [1] * (x.ndim - 1)
    for offset in range(longest):
        at = first + offset
        going = (at < until).view(-1, *shape)
        at = at.clamp_max(len(table.variable) - 1)
        weights = lagrange(table.variable, nodes, known, at).float()
        forecast = (weights.view(*weights.shape, *shape) * values).sum(dim=1)
        x = torch.where(going, table.step(x, forecast, at, noise), x)
    return x


def _refuse_to_capture(dtype: torch.dtype) -> None:
    """Raise DenoiserError while a graph is captured: the loop reads its length on the host."""
    if not torch.cuda.is_current_stream_capturing():
        return
    if dtype == torch.float64:
        reason = "are not for states in float64; use a float32 planner"
    else:
        reason = (
            "need Triton, which is missing or cannot build its kernel here; install Triton and a C "
            "compiler"
        )
    raise DenoiserError(f"adaptive plans in CUDA graphs {reason}, or a static plan")


def used_nodes(forecast: Forecast, count: Tensor, width: int) -> Tensor:
    """Which of the newest-last nodes a forecast reads, (rows, width)."""
    back = torch.arange(width - 1, -1, -1, device=count.device)
    return (back < count[:, None]) & (back <= forecast.order)
