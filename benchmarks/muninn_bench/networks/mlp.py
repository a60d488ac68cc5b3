"""Networks of single actions: a denoiser, twin critics, and what both are made of."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from muninn_bench.networks.unet import TimeEmbedding


class Mlp(nn.Sequential):
    """Linear layers with Mish between them; normalised if asked for."""

    def __init__(self, widths: tuple[int, ...], *, normalise: bool = False) -> None:
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths[:-1]):
            layers.append(nn.Linear(width_in, width_out))
            if normalise:
                layers.append(nn.LayerNorm(width_out))
            layers.append(nn.Mish())
        super().__init__(*layers, nn.Linear(widths[-2], widths[-1]))


class ActionDenoiser(nn.Module):
    """Predicts the noise in actions, given the observation they are for.

    The network of Diffusion-QL (Wang et al. 2023), appendix B: three hidden layers with Mish.
    """

    def __init__(self, observation: int, action: int, width: int, time_width: int = 16) -> None:
        super().__init__()
        self.time = TimeEmbedding(time_width)
        first = observation + action + time_width
        self.layers = Mlp((first, width, width, width, action))

    def forward(self, x: Tensor, t: Tensor, observation: Tensor) -> Tensor:
        """Noise of actions ``(batch, candidates, action)``; observations are (batch, channels)."""
        return self.at(x, self.time(t), observation)

    def at(self, x: Tensor, time: Tensor, observation: Tensor) -> Tensor:
        """The same for times that are embedded already, (batch, width)."""
        told = [part[:, None].expand(-1, x.shape[1], -1) for part in (time, observation)]
        noise: Tensor = self.layers(torch.cat([x, *told], dim=-1))
        return noise


class TwinCritic(nn.Module):
    """Two estimates of the discounted return after an action; normalised layers keep them tame."""

    def __init__(self, observation: int, action: int, width: int) -> None:
        super().__init__()
        widths = (observation + action, width, width, width, 1)
        self.twins = nn.ModuleList(Mlp(widths, normalise=True) for _ in range(2))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Both estimates, (2, ...), of observations and actions (..., channels)."""
        both = torch.cat([observation, action], dim=-1)
        return torch.stack([twin(both)[..., 0] for twin in self.twins])
