"""Analytic planners: trajectories from a Gaussian mixture, denoised by the exact posterior mean.

Nothing is learned and a call costs microseconds, so a promise about calls can be checked on
millions of them. The mixture has a few routes to choose from, as a planner has; caching a call
that stands between two routes can send it along the other one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm

HORIZON, DIM = 8, 2
STEPS = 20
Layout = Literal["four", "one", "two"]


class Routes(NamedTuple):
    """The components of a mixture; routes start together and fan out."""

    means: Tensor  # (routes, horizon, dim)
    widths: Tensor  # (routes,), standard deviation of every coordinate
    weights: Tensor  # (routes,)


def routes(layout: Layout, seed: int = 0) -> Routes:
    """Four fixed routes, or what a seed draws: ``one`` broad route of three components that lie
    within a width or two of each other, or ``two`` narrow ones, many widths apart."""
    generator = torch.Generator().manual_seed(0 if layout == "four" else seed)
    wiggle = 0.15 * torch.randn(4, HORIZON, DIM, generator=generator)
    ends = torch.tensor([[1.0, 0.3], [0.6, 0.9], [-0.4, 0.8], [-0.9, -0.2]])
    widths, weights = torch.tensor([[0.10, 0.16, 0.12, 0.22], [0.35, 0.25, 0.25, 0.15]])
    if layout != "four":
        count = 3 if layout == "one" else 2
        centre, aside = 0.5 * torch.randn(2, DIM, generator=generator)
        sides = torch.tensor([[1.0], [-1.0]]) * 0.5 * aside / aside.norm()
        near = 0.15 * torch.randn(count, DIM, generator=generator)
        wiggle, ends = wiggle[:1], centre + (near if layout == "one" else sides)
        widths, weights = torch.rand(2, count, generator=generator)
        widths = (0.15 if layout == "one" else 0.1) * (1.0 + widths)
        weights = (0.3 + weights) / (0.3 + weights).sum()
    means = ends[:, None] * torch.linspace(0.0, 1.0, HORIZON)[:, None] + wiggle
    return Routes(means, widths, weights)


class MixtureDenoiser(nn.Module):
    """Predicts ``E[x0 | x_t]`` for ``x0 = bend(context) + route``, the route from a mixture.

    Works on states (batch, ..., horizon, dim) with contexts (batch, ..., dim), so that many calls
    may also be laid out as one row.
    """

    alpha_bar: Tensor
    means: Tensor
    variances: Tensor
    log_weights: Tensor
    basis: Tensor

    def __init__(self, schedule: Schedule, mixture: Routes) -> None:
        super().__init__()
        ramp = torch.linspace(0.0, 1.0, HORIZON)
        self.register_buffer("alpha_bar", torch.tensor(schedule.alpha_bar))
        self.register_buffer("means", mixture.means.flatten(1))
        self.register_buffer("variances", mixture.widths**2)
        self.register_buffer("log_weights", mixture.weights.log())
        self.register_buffer("basis", torch.kron(ramp, torch.eye(DIM)))

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """The exact posterior mean, of the shape of ``x``."""
        power = self.alpha_bar[timestep].view(-1, *[1] * (x.ndim - 2)).to(x.dtype)
        signal = power.sqrt()
        bend = context.to(x.dtype) @ self.basis.to(x.dtype)
        centred = x.flatten(-2) - signal * bend
        means, variances = self.means.to(x.dtype), self.variances.to(x.dtype)
        spread = power * variances + (1.0 - power)
        gain = signal * variances / spread
        distance = (
            (centred**2).sum(dim=-1, keepdim=True)
            - 2.0 * signal * (centred @ means.T)
            + power * (means**2).sum(dim=1)
        )
        logits = self.log_weights.to(x.dtype) - 0.5 * (
            distance / spread + centred.shape[-1] * spread.log()
        )
        # Components first: a softmax over a last dimension of four is many times slower.
        share = logits.movedim(-1, 0).contiguous().softmax(dim=0).movedim(0, -1)
        route = centred * (share * gain).sum(dim=-1, keepdim=True)
        route = route + (share * (1.0 - signal * gain)) @ means
        return (route + bend).view(x.shape)


def mixture_planner(
    sampler_name: str,
    calls_per_row: int | None = None,
    *,
    layout: Layout = "four",
    seed: int = 0,
    steps: int = STEPS,
) -> Planner:
    """A planner of 8 x 2 trajectories with a sampler, ``ddim`` or ``ddpm``, and its routes.

    ``calls_per_row`` lays that many calls out as one row of shape (calls, horizon, dim). A planner
    acts on each call alone, so under a static plan this computes the same calls without the
    runtime's bookkeeping per row.
    """
    schedule = Schedule.cosine(steps)
    sampler: Sampler = {"ddim": ddim, "ddpm": ddpm}[sampler_name](schedule, kind="sample")
    shape = (HORIZON, DIM) if calls_per_row is None else (calls_per_row, HORIZON, DIM)
    return Planner(MixtureDenoiser(schedule, routes(layout, seed)).eval(), sampler, shape)
