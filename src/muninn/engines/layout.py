"""Convolutions over time in the layout that tensor cores want, channels last.

PyTorch runs ``Conv1d`` with channels first. On CUDA in half precision the library then transposes
input, weights and result of every convolution, weights included, each time it is called.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Network = TypeVar("Network", bound=nn.Module)


class _Conv(nn.Module):
    """A convolution over time as one over an image of height 1, weights stored channels last."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, source: nn.Conv1d | nn.ConvTranspose1d) -> None:
        super().__init__()
        weight = source.weight.detach().unsqueeze(2).contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if source.bias is None else source.bias.detach())
        self.transposed = isinstance(source, nn.ConvTranspose1d)
        self.settings: dict[str, Any] = {
            "stride": (1, int(source.stride[0])),
            "padding": (0, int(source.padding[0])),
            "dilation": (1, int(source.dilation[0])),
            "groups": source.groups,
        }
        if self.transposed:
            self.settings["output_padding"] = (0, int(source.output_padding[0]))
        self.train(source.training)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, time) to the same, stored channels last."""
        image = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        convolve = functional.conv_transpose2d if self.transposed else functional.conv2d
        return convolve(image, self.weight, self.bias, **self.settings).squeeze(2)


def channels_last(network: Network) -> Network:
    """A copy of a network for inference whose convolutions over time are stored channels last.

    It computes the same up to rounding. With ``engine="compile"`` on CUDA it saves transposing
    around every convolution; eager PyTorch transposes back for normalisations and gains nothing.
    Convolutions with hooks, with padding other than zeros, and subclasses stay as they are.

    >>> network = nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.Mish(), nn.Conv1d(8, 4, 1)).eval()
    >>> x = torch.randn(2, 4, 16)
    >>> torch.allclose(channels_last(network)(x), network(x), atol=1e-6)
    True
    """
    changed = copy.deepcopy(network).requires_grad_(False)
    for parent in list(changed.modules()):
        for name, child in list(parent.named_children()):
            if (
                isinstance(child, nn.Conv1d | nn.ConvTranspose1d)
                and type(child) in (nn.Conv1d, nn.ConvTranspose1d)
                and child.padding_mode == "zeros"
                and not isinstance(child.padding, str)
                and not (child._forward_pre_hooks or child._forward_hooks)
            ):
                setattr(parent, name, _Conv(child))
    return changed
