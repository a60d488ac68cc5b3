"""TaylorSeer-style caching: a Taylor series in the step index between evaluations at a stride."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.denoiser import check_prediction
from muninn.model.planner import Noise, Planner


class TaylorPlanner:
    """Evaluates some of the sampler's steps; between them continues the network's own output.

    Derivatives are finite differences of the last evaluations, each divided by the steps between
    them; the series is Taylor's, ``sum_k D_k n^k / k!`` after ``n`` steps, not the interpolating
    polynomial. No look-back, and the step index as variable: what is used for images and video.
    Anchors are the steps to evaluate, the first and the last among them; order 0 holds the output.
    """

    def __init__(self, planner: Planner, anchors: Sequence[int], order: int = 1) -> None:
        if order < 0:
            raise InputError(f"order must be at least 0, got {order}")
        ends = (0, len(planner.sampler) - 1)
        if (min(anchors, default=None), max(anchors, default=None)) != ends:
            raise InputError(f"anchors go from step {ends[0]} to step {ends[1]}, got {anchors}")
        self.planner = planner
        self.order = order
        self.anchors = frozenset(anchors)

    @torch.no_grad()
    def sample(self, context: Context = None, *, noise: Noise) -> Tensor:
        """Trajectories (batch, horizon, dim) from the given noise."""
        planner = self.planner
        noise = planner.prepare(context, noise, None)
        x = planner.start(noise, context)
        series: list[Tensor] = []
        last = 0
        for step in range(len(planner.sampler)):
            if step in self.anchors:
                output = planner.denoiser(x, planner.timestep(step, len(x)), context)
                prediction = check_prediction(output, x, None)
                series, last = self._differences(prediction.clone(), series, step - last), step
            else:
                terms = (
                    derivative * ((step - last) ** k / math.factorial(k))
                    for k, derivative in enumerate(series)
                )
                prediction = torch.stack(list(terms)).sum(dim=0)
            x = planner.advance(x, prediction, step, noise.at(step, slice(None)), context)
        return x

    def _differences(self, newest: Tensor, series: list[Tensor], gap: int) -> list[Tensor]:
        """Derivatives per step up to the order, as far as the history allows."""
        derivatives = [newest]
        for old in series[: self.order]:
            derivatives.append((derivatives[-1] - old) / gap)
        return derivatives
