"""Let a GPU evaluate the network of a planner that stays on the CPU.

A study needs millions of evaluations for plans whose latencies are not measured but drawn from a
trace. Everything but the network (sampler, cache, decisions, screen) still runs where the robot's
would, in float32; the network's float32 results differ by rounding alone.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from muninn.bench.matrix_convolution import use_matrix_products
from muninn.planner import Planner


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

    def forward(x: Tensor, *others: Any) -> Tensor:
        found: Tensor = fast(x.to("cuda"), *(other.to("cuda") for other in others))
        return found.to(x.device)

    network.forward = forward
    return True
