"""Plan with a teacher: inpainted endpoints and the plain DDIM chain, every step evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muninn.bench.maze import MazeProblem
from muninn.planners.teacher import Teacher

STATE_CHANNELS = 4
"""Position and velocity; they are inpainted at both ends, actions never are."""


def inpaint(x: Tensor, start: Tensor, goal: Tensor) -> Tensor:
    """Return a copy of the plans whose first and last state are the given ones.

    Args:
        x: Plans, ``(batch, horizon, channels)``.
        start: Normalised states at frame 0, ``(batch, 4)``.
        goal: Normalised states at the last frame, ``(batch, 4)``.
    """
    conditioned = x.clone()
    conditioned[:, 0, :STATE_CHANNELS] = start
    conditioned[:, -1, :STATE_CHANNELS] = goal
    return conditioned


def endpoints(teacher: Teacher, problems: Sequence[MazeProblem]) -> tuple[Tensor, Tensor]:
    """Return the normalised start and goal states, each ``(batch, 4)``; goals are at rest."""
    start = torch.tensor(np.array([problem.start for problem in problems]), dtype=torch.float32)
    goal = torch.tensor(np.array([problem.goal for problem in problems]), dtype=torch.float32)
    goal = torch.cat([goal, torch.zeros_like(goal)], dim=-1)
    return teacher.normalise(start), teacher.normalise(goal)


@torch.inference_mode()
def sample_plans(
    teacher: Teacher,
    problems: Sequence[MazeProblem],
    seed: int,
    steps: int | None = None,
    batch: int = 64,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """Plan every problem with DDIM (Song et al. 2021, eta = 0), x0 clipped and noise re-derived.

    The plan is inpainted before every evaluation and once at the end.

    Args:
        teacher: The planner; its network must be on ``device``.
        problems: Starts and goals in world units.
        seed: Seed of the initial noise; problem ``i`` gets the same noise in any batch.
        steps: Number of evaluations, evenly spaced; all training steps if None.
        batch: Plans made at a time.
        device: Where to compute.

    Returns:
        Plans in world units, ``(problems, horizon, channels)``.
    """
    table = torch.tensor(teacher.schedule.alpha_bar, dtype=torch.float32)
    count = len(table) if steps is None else steps
    visited = np.linspace(len(table) - 1, 0, count).round().astype(int).tolist()
    channels = len(teacher.low)
    plans = []
    for first in range(0, len(problems), batch):
        chosen = problems[first : first + batch]
        start, goal = (end.to(device) for end in endpoints(teacher, chosen))
        noise = [
            torch.randn(
                teacher.horizon, channels, generator=torch.Generator().manual_seed(seed + index)
            )
            for index in range(first, first + len(chosen))
        ]
        x = torch.stack(noise).to(device)
        for index, timestep in enumerate(visited):
            now = float(table[timestep])
            after = float(table[visited[index + 1]]) if index + 1 < count else 1.0
            x = inpaint(x, start, goal)
            at = torch.full((len(chosen),), timestep, device=device, dtype=torch.long)
            clean = teacher.network(x, at).clamp(-1.0, 1.0)
            noise_part = (x - now**0.5 * clean) / (1.0 - now) ** 0.5
            x = after**0.5 * clean + (1.0 - after) ** 0.5 * noise_part
        plans.append(teacher.unnormalise(inpaint(x, start, goal)).double().cpu().numpy())
    return np.concatenate(plans)
