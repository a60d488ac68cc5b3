"""Let a GPU evaluate the network of a planner that stays on the CPU.

A study needs millions of evaluations for plans whose latencies are not measured but drawn from a
trace. Everything but the network (sampler, cache, decisions, screen) still runs where the robot's
would, in float32; the network's float32 results differ by rounding alone. Launching its kernels
one by one would take longer than they do, so they are in CUDA graphs.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from muninn.engines.capture import capture
from muninn.model.planner import Planner
from muninn_bench.networks.matrix_convolution import use_matrix_products


def evaluate_on_gpu(planner: Planner) -> bool:
    """Do so from now on, if there is a GPU; returns whether there is.

    The planner keeps its identity: its own weights stay as they are, unused.
    """
    network = getattr(planner.denoiser, "network", None)
    if network is None or not torch.cuda.is_available():
        return False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    fast = copy.deepcopy(network).to("cuda")
    use_matrix_products(fast)

    @functools.cache  # unlike a dictionary not looked into by certificates: buffers always change
    def captured(*inputs: tuple[tuple[int, ...], torch.dtype]) -> tuple[Any, Tensor, list[Tensor]]:
        buffers = [torch.zeros(shape, dtype=dtype, device="cuda") for shape, dtype in inputs]
        graph, found = capture(lambda: fast(*buffers), torch.device("cuda"))
        return graph, found, buffers

    @torch.no_grad()
    def forward(*given: Tensor) -> Tensor:
        """Rows are filled up to a power of two, so that a few graphs do for all batches."""
        rows = len(given[0])
        size = 1 << (rows - 1).bit_length()
        graph, found, buffers = captured(*(((size, *one.shape[1:]), one.dtype) for one in given))
        for buffer, one in zip(buffers, given, strict=True):
            buffer[:rows].copy_(one)
        graph.replay()
        return found[:rows].to(given[0].device)

    network.forward = forward
    return True
