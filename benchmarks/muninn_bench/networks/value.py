"""The return of a noisy plan: what guides Diffuser's sampling."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from muninn_bench.networks.unet import ResidualBlock, TimeEmbedding


class PlanValue(nn.Module):
    """Estimates the standardised return of plans from their noisy states.

    The downward half of the planner's U-Net, averaged over time. Each width halves the time axis
    of the one before.
    """

    def __init__(self, channels: int, widths: tuple[int, ...], time_width: int) -> None:
        super().__init__()
        self.time = TimeEmbedding(time_width)
        self.project_in = nn.Conv1d(channels, widths[0], 5, padding=2)
        self.blocks = nn.ModuleList(ResidualBlock(width, width, 5, time_width) for width in widths)
        self.coarsen = nn.ModuleList(
            nn.Conv1d(width_in, width_out, 4, stride=2, padding=1)
            for width_in, width_out in pairwise(widths)
        )
        last = widths[-1]
        self.project_out = nn.Sequential(nn.Linear(last, last), nn.SiLU(), nn.Linear(last, 1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Returns (batch,) of plans (batch, horizon, channels) at timesteps (batch,)."""
        time = self.time(t)
        h = self.blocks[0](self.project_in(x.transpose(1, 2)), time)
        for coarsen, block in zip(self.coarsen, list(self.blocks)[1:], strict=True):
            h = block(coarsen(h), time)
        value: Tensor = self.project_out(h.mean(dim=2))[:, 0]
        return value
