"""A diffusers scheduler and any network: calibrate once, then sample with a few evaluations.

The network here is the exact posterior mean of two routes to a goal, so the script needs no
weights; put your own in its place. It is called as diffusers' models are, ``model(x, t, ...)``.
"""

import torch
from diffusers import DDIMScheduler

import muninn
from muninn.adapters.styles import planner_from_diffusers

scheduler = DDIMScheduler(100, beta_schedule="squaredcos_cap_v2", prediction_type="sample")


class Network(torch.nn.Module):
    """E[trajectory | x] for two routes to ``goal``: bent to the left and to the right."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signal", scheduler.alphas_cumprod.sqrt())

    def forward(self, x: torch.Tensor, t: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        a = self.signal[t].view(-1, 1, 1)
        along = torch.linspace(0, 1, x.shape[1])[:, None]
        bend = 0.3 * torch.sin(torch.pi * along)
        means = torch.stack([goal[:, None] * along + side * bend for side in (-1, 1)], dim=1)
        spread = 0.05**2 * a**2 + 1 - a**2
        distance = ((x[:, None] - a[:, None] * means) ** 2).flatten(2).sum(-1)
        weight = (-distance / (2 * spread[:, :, 0])).softmax(dim=1)
        mean = (weight[..., None, None] * means).sum(1)
        return mean + 0.05**2 * a / spread * (x - a * mean)


# -- from here on it is the same for your network -------------------------------------------------
planner = planner_from_diffusers(Network().eval(), scheduler, steps=50, shape=(16, 2))
goals = 0.5 * torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
certificate = muninn.calibrate(planner, {"goal": goals}, tolerance=0.02, risk=0.05)
print(certificate.promise())

fast = muninn.cache(planner, certificate)
noise = planner.draw_noise(1, generator=torch.Generator().manual_seed(1))
trajectory, record = fast({"goal": torch.ones(1, 2)}, noise=noise)
full = planner.sample({"goal": torch.ones(1, 2)}, noise=noise)  # diffusers' own loop, bit for bit
print(f"{record.evaluations[0]} of 50 evaluations, {(trajectory - full).abs().max():.4f} apart")
