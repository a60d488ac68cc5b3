"""A sampling loop that stays as it is: Muninn stands between the loop and its network.

Prefer ``muninn.cache`` where you may replace the loop: it looks back, and needs fewer evaluations.
"""

import torch

import muninn
from muninn.adapters.call_level import intercept, tune_without_look_back

schedule = muninn.Schedule.cosine(50)
signal = torch.tensor([1.0, *schedule.alpha_bar], dtype=torch.float32).sqrt()


class Network(torch.nn.Module):
    """E[trajectory | x] for straight lines from ``start`` to the origin, with a spread of 0.2."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signal", signal)
        self.eval()

    def forward(self, x: torch.Tensor, t: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        a = self.signal[t + 1].view(-1, 1, 1)
        line = start[:, None, :] * torch.linspace(1, 0, x.shape[1])[None, :, None]
        return line + 0.2**2 * a / (0.2**2 * a**2 + 1 - a**2) * (x - a * line)


class TheirPlanner:
    """Somebody else's code: DDIM, written out."""

    def __init__(self) -> None:
        self.network = Network()

    def plan(self, start: torch.Tensor) -> torch.Tensor:
        x = torch.randn(len(start), 16, 2)
        for t in reversed(range(50)):
            x0 = self.network(x, torch.full((len(start),), t), start)
            now, then = signal[t + 1], signal[t]
            noise = (x - now * x0) / (1 - now**2).sqrt()
            x = then * x0 + (1 - then**2).sqrt() * noise
        return x


theirs = TheirPlanner()
starts = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))

# -- describe the loop, and see once that it is the same loop -------------------------------------
planner = muninn.Planner(theirs.network, muninn.ddim(schedule, kind="sample"), shape=(16, 2))
torch.manual_seed(1)
own = theirs.plan(starts[:1])
torch.manual_seed(1)
torch.testing.assert_close(planner.sample(starts[:1]), own, atol=1e-4, rtol=0.0)

# -- calibrate, intercept, go on as before --------------------------------------------------------
family = tune_without_look_back(planner, starts[:60], tolerance=0.05)
certificate = muninn.calibrate(planner, starts[60:], tolerance=0.05, risk=0.05, family=family)
print(certificate.promise())
cached = intercept(theirs.network, planner, certificate)
for start in ([[1.0, 0.5]], [[0.2, -1.0]], [[-1.0, 0.3]]):
    theirs.plan(torch.tensor(start))
    print(f"{cached.last.evaluations[0]} of 50 evaluations; {cached.last.fallback[0] or 'cached'}")
cached.remove()
