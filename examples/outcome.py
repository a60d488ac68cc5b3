"""Promise what episodes come to: with fewer evaluations, how many more of them fail?

A point robot replans on its way to the origin, is pushed about, and succeeds if it gets there.
``run`` is your simulator: it takes a planner and a seed, and returns a score or a success.
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


def run(plan, seed: int) -> bool:
    """One episode: six replans with a push after each, a success within 0.5 of the origin."""
    world = torch.Generator().manual_seed(seed)
    position = torch.randn(1, 2, generator=world)
    for _ in range(6):
        position = plan(position)[:, 8] + 0.1 * torch.randn(1, 2, generator=world)
    return bool(position.norm() < 0.5)


planner = muninn.Planner(denoiser, muninn.ddim(schedule, kind="sample"), shape=(16, 2))
outcomes = muninn.Outcomes(run, 200, promise="mean", margin=0.05, together=50)
certificate = muninn.calibrate(planner, outcomes)
print(certificate.promise())
judged = muninn.evaluate(planner, certificate, muninn.Outcomes(run, 400, "mean", 0.05, together=50))
print(judged.sentence())
print(f"{judged.evaluations:.0f} of {judged.steps} evaluations")
