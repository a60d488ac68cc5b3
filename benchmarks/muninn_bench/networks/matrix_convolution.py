"""Convolutions over time as matrix products: full float32, and fast, on a GPU.

cuDNN's float32 kernels for these shapes (one short axis, few channels) took 265 ms for a batch of
256 plans on an H200, and its default rounds to ten bits. Gathering the windows and multiplying
once costs memory, not time.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class MatrixConv1d(nn.Module):
    """The same map as an ``nn.Conv1d`` (no groups, no dilation), by gathered windows."""

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.kernel, self.stride = convolution.kernel_size[0], convolution.stride[0]
        self.padding = int(convolution.padding[0])
        self.train(convolution.training)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width_in, time) to (batch, width_out, time)."""
        frames = functional.pad(x.transpose(1, 2), (0, 0, self.padding, self.padding))
        windows = frames.unfold(1, self.kernel, self.stride)
        batch, length = windows.shape[:2]
        gathered = windows.reshape(batch * length, -1)
        out = functional.linear(gathered, self.weight.flatten(1), self.bias)
        return out.view(batch, length, -1).transpose(1, 2)


def use_matrix_products(network: nn.Module) -> None:
    """Replace every plain convolution over time inside a network, in place."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            plain = isinstance(child, nn.Conv1d) and child.groups == 1 and child.dilation == (1,)
            if plain:
                setattr(parent, name, MatrixConv1d(child))  # type: ignore[arg-type]
