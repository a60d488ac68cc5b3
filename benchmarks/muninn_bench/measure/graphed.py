"""Any sampler as one CUDA graph, so that alternatives run on the engines that programs run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from muninn.context import Context, copy_into, select
from muninn.engines.capture import capture
from muninn.model.planner import Noise, Planner


class GraphedSample:
    """A sampling function of one shape as one CUDA graph: captured at the first call."""

    def __init__(self, planner: Planner, sample: Callable[..., Tensor]) -> None:
        self._planner = planner
        self._sample = sample
        self._captured: tuple[Any, Tensor, Context, Noise] | None = None

    @torch.no_grad()
    def __call__(self, context: Context, *, noise: Noise) -> Tensor:
        """The function's result, the caller's own copy."""
        if self._captured is None:
            rows = torch.arange(len(noise.initial), device=noise.initial.device)
            inputs, buffers = select(context, rows), noise.select(rows)
            graph, result = capture(
                lambda: self._sample(inputs, noise=buffers), self._planner.device
            )
            self._captured = graph, result, inputs, buffers
        graph, result, inputs, buffers = self._captured
        copy_into(inputs, context)
        buffers.initial.copy_(noise.initial, non_blocking=True)
        graph.replay()
        return result.clone()
