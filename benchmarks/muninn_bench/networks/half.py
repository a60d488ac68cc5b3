"""Half precision where it pays: in the network's layers, and nowhere else.

Autocast would cast every weight at every evaluation and run every normalisation in float32: more
kernels, at batch 1 more time. Here weights are stored in half precision once. States, the time
embedding (a float16 angle near 100 is rounded by up to 0.03), the output scaling and all
bookkeeping of a cache stay in float32: the first convolution casts its input, and the network casts
its correction back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muninn_bench.networks.teacher import Network


def halve(network: Network) -> Network:
    """The network itself, its layers in half precision; it still maps float32 to float32."""
    kept = {id(parameter) for parameter in network.time.parameters()}
    for parameter in network.parameters():
        if id(parameter) not in kept:
            parameter.data = parameter.data.to(torch.float16)
    network.time.register_forward_hook(_cast_output)
    network.project_in.register_forward_pre_hook(_cast_input)
    return network


def _cast_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.to(torch.float16)


def _cast_input(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].to(torch.float16),)
