"""A closed-loop certificate: each candidate program drives its own episodes.

A point robot replans from where it really is, so a cached planner visits other states than the
full one. ``Episodes`` calibrates exactly that, with full compute shadowed at every call.
"""

import torch

import muninn

schedule = muninn.Schedule.cosine(50)
signal = torch.tensor(schedule.alpha_bar, dtype=torch.float32).sqrt()


def denoiser(x: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """Plans straight lines from the robot to the origin, with a spread of 0.2."""
    a = signal[timestep].view(-1, 1, 1)
    line = context[:, None, :] * torch.linspace(1, 0, x.shape[1])[None, :, None]
    return line + 0.2**2 * a / (0.2**2 * a**2 + 1 - a**2) * (x - a * line)


def drive(plan, seed: int) -> None:
    """One episode: five replans, executing the first steps of each plan."""
    position = torch.randn(1, 2, generator=torch.Generator().manual_seed(seed))
    for _ in range(5):
        trajectory = plan(position)
        position = trajectory[:, 3]


planner = muninn.Planner(denoiser, muninn.ddim(schedule, kind="sample"), shape=(16, 2))
certificate = muninn.calibrate(planner, muninn.Episodes(drive, 120), tolerance=0.05, risk=0.05)
print(certificate.promise())
