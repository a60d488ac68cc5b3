"""DDPM, DDIM and Euler for flow matching, each as a table of sampler steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler, Step
from muninn.model.schedule import Schedule, Spacing, spaced_timesteps


def _diffusion_states(
    schedule: Schedule, timesteps: list[int], previous: list[int], final: float
) -> list[tuple[float, float]]:
    """(alpha_bar, alpha_bar after the step) for each visited timestep."""
    table = schedule.alpha_bar
    return [
        (float(table[now]), float(table[after]) if after >= 0 else final)
        for now, after in zip(timesteps, previous, strict=True)
    ]


def ddpm(
    schedule: Schedule,
    steps: int | None = None,
    *,
    kind: Kind = "epsilon",
    clip: float | None = None,
    spacing: Spacing = "leading",
    offset: int = 0,
) -> Sampler:
    """Ancestral sampling (Ho et al. 2020), posterior variance, no noise at timestep 0."""
    count = schedule.steps if steps is None else steps
    timesteps = spaced_timesteps(schedule.steps, count, spacing, offset)
    previous = [*timesteps[1:], -1]
    table = []
    for timestep, (now, after) in zip(
        timesteps, _diffusion_states(schedule, timesteps, previous, 1.0), strict=True
    ):
        alpha = now / after
        variance = max((1 - after) / (1 - now) * (1 - alpha), 1e-20)
        table.append(
            Step(
                timestep,
                math.sqrt(now),
                math.sqrt(1 - now),
                math.sqrt(after),
                math.sqrt(1 - after),
                from_state=math.sqrt(alpha) * (1 - after) / (1 - now),
                from_sample=math.sqrt(after) * (1 - alpha) / (1 - now),
                from_epsilon=0.0,
                from_noise=math.sqrt(variance),
                draws_noise=timestep > 0,
            )
        )
    details = _schedule_details(schedule, spacing, offset)
    return Sampler("ddpm", kind, table, flow=False, clip=clip, details=details)


def ddim(
    schedule: Schedule,
    steps: int | None = None,
    *,
    kind: Kind = "epsilon",
    eta: float = 0.0,
    clip: float | None = None,
    keep_epsilon: bool = False,
    spacing: Spacing = "leading",
    offset: int = 0,
    end_clean: bool = True,
) -> Sampler:
    """Denoising diffusion implicit models (Song et al. 2021), any ``eta``.

    Args:
        schedule: the model's training schedule.
        steps: sampler steps, at most the training steps; all of them by default.
        kind: what the network predicts.
        eta: 0 is deterministic, 1 has the posterior variance of DDPM.
        clip: bound on |x0|.
        keep_epsilon: diffusers' default (``use_clipped_model_output=False``).
        spacing, offset: as in diffusers (``timestep_spacing``, ``steps_offset``).
        end_clean: the last step ends at alpha_bar = 1 (``set_alpha_to_one``).
    """
    if not eta >= 0.0:
        raise InputError(f"eta must be at least 0, got {eta}")
    count = schedule.steps if steps is None else steps
    timesteps = spaced_timesteps(schedule.steps, count, spacing, offset)
    previous = [timestep - schedule.steps // count for timestep in timesteps]
    final = 1.0 if end_clean else float(schedule.alpha_bar[0])
    table = []
    for timestep, (now, after) in zip(
        timesteps, _diffusion_states(schedule, timesteps, previous, final), strict=True
    ):
        deviation = eta * math.sqrt(max((1 - after) / (1 - now) * (1 - now / after), 0.0))
        if deviation**2 > 1 - after + 1e-12:
            raise InputError(f"eta={eta} asks for more noise than step {timestep} has; lower eta")
        table.append(
            Step(
                timestep,
                math.sqrt(now),
                math.sqrt(1 - now),
                math.sqrt(after),
                math.sqrt(1 - after),
                from_state=0.0,
                from_sample=math.sqrt(after),
                from_epsilon=math.sqrt(max(1 - after - deviation**2, 0.0)),
                from_noise=deviation,
                draws_noise=eta > 0.0,
            )
        )
    details = _schedule_details(schedule, spacing, offset)
    details.update(eta=eta, end_clean=end_clean)
    return Sampler(
        "ddim", kind, table, flow=False, clip=clip, keep_epsilon=keep_epsilon, details=details
    )


def euler(
    times: int | Sequence[float],
    *,
    kind: Kind = "velocity",
    clip: float | None = None,
    time_scale: float = 1.0,
) -> Sampler:
    """Euler integration of a flow-matching model.

    Args:
        times: number of equal steps from 1 (noise) to 0 (trajectory), or the grid itself,
            ``steps + 1`` values from 1 to 0, or from 0 (noise) to 1.
        kind: what the network predicts; ``velocity`` is dx/dt along the given times.
        clip: bound on |x0|.
        time_scale: the network is told ``time * time_scale`` (diffusers: 1000).
    """
    grid = np.linspace(1.0, 0.0, times + 1) if isinstance(times, int) else np.asarray(times, float)
    if grid.ndim != 1 or grid.size < 2:
        raise InputError(f"flow times need at least two values, got {grid.size}")
    moves = np.diff(grid)
    if not np.isfinite(grid).all() or not ((moves < 0).all() or (moves > 0).all()):
        raise InputError("flow times must move strictly in one direction, from noise to trajectory")
    if grid.min() < 0.0 or grid.max() > 1.0 or {float(grid[-1])} - {0.0, 1.0}:
        raise InputError(f"flow times must lie in [0, 1] and end at 0 or 1, got end {grid[-1]:g}")
    noise_level = np.abs(grid - grid[-1])
    sign = 1.0 if grid[0] > grid[-1] else -1.0
    table = [
        Step(
            float(grid[i]) * time_scale,
            1.0 - float(noise_level[i]),
            float(noise_level[i]),
            1.0 - float(noise_level[i + 1]),
            float(noise_level[i + 1]),
            from_state=1.0,
            from_sample=-sign * float(moves[i]),
            from_epsilon=sign * float(moves[i]),
        )
        for i in range(grid.size - 1)
    ]
    details = {"times": [round(float(time), 9) for time in grid], "time_scale": time_scale}
    return Sampler("euler", kind, table, flow=True, clip=clip, velocity_sign=sign, details=details)


def _schedule_details(schedule: Schedule, spacing: Spacing, offset: int) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "schedule_digest": schedule.digest(),
        "training_steps": schedule.steps,
        "spacing": spacing,
        "offset": offset,
    }
