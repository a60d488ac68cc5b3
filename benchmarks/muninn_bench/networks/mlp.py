"""A small perceptron over the flattened plan, in the manner of Diffusion-QL's denoiser.

Such networks denoise single actions and short action chunks. They have no resolution or token to
split at, so the stem is everything but the last linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn.model.sampler import Kind
from muninn_bench.networks.unet import TimeEmbedding, require_depth


@dataclass(frozen=True)
class MlpConfig:
    """Architecture of a ``TrajectoryMlp``.

    Attributes:
        channels: Entries of one plan frame.
        width: Width of the hidden layers.
        layers: Number of hidden layers.
        time_width: Width of the time embedding.
    """

    channels: int = 6
    width: int = 256
    layers: int = 3
    time_width: int = 16


class TrajectoryMlp(nn.Module):
    """Multilayer perceptron with Mish activations that predicts the noise in a flattened plan.

    Args:
        config: Architecture.
        horizon: Frames in a plan.

    Raises:
        InputError: If the network would have no hidden layer, or too narrow a time embedding.
    """

    predicts: ClassVar[Kind] = "epsilon"

    def __init__(self, config: MlpConfig, horizon: int) -> None:
        super().__init__()
        if config.layers < 1 or config.time_width < 4:
            raise InputError(
                "a perceptron needs at least 1 hidden layer and a time embedding of width 4, got "
                f"{config.layers} and {config.time_width}"
            )
        self.config = config
        self.horizon = horizon
        entries = horizon * config.channels
        self.time = TimeEmbedding(config.time_width)
        widths = [entries + config.time_width] + [config.width] * config.layers
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.Mish()]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(config.width, entries)

    def stem(self, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
        """Map a noisy plan to the penultimate activation ``(batch, width)``, at either depth."""
        require_depth(depth)
        features: Tensor = self.hidden(torch.cat([x.flatten(1), self.time(t)], dim=1))
        return features

    def core(self, h: Tensor, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
        """Map the penultimate activation to the noise, ``(batch, horizon, channels)``."""
        require_depth(depth)
        noise: Tensor = self.head(h)
        return noise.view(len(h), self.horizon, self.config.channels)

    def pool(self, h: Tensor) -> Tensor:
        """Return the activation as it is: it has no time axis."""
        return h

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predict the noise in plans ``(batch, horizon, channels)`` at timesteps ``(batch,)``."""
        return self.core(self.stem(x, t), x, t)
