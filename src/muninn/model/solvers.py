"""DDPM, DDIM and Euler for flow matching, each as a table of sampler steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler, Step
from muninn.model.schedule import Schedule, Spacing, spaced_timesteps


def _diffusion_step(timestep: int, now: float, after: float, **update: Any) -> Step:
    """A step between two signal powers ``alpha_bar``."""
    levels = (math.sqrt(now), math.sqrt(1 - now), math.sqrt(after), math.sqrt(1 - after))
    return Step(timestep, *levels, **update)


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
    powers = [*schedule.alpha_bar[timesteps].tolist(), 1.0]
    table = []
    for timestep, (now, after) in zip(timesteps, itertools.pairwise(powers), strict=True):
        alpha = now / after
        variance = max((1 - after) / (1 - now) * (1 - alpha), 1e-20)
        update = {
            "from_state": math.sqrt(alpha) * (1 - after) / (1 - now),
            "from_sample": math.sqrt(after) * (1 - alpha) / (1 - now),
            "from_epsilon": 0.0,
            "from_noise": math.sqrt(variance),
        }
        table.append(_diffusion_step(timestep, now, after, **update, draws_noise=timestep > 0))
    details = _details(schedule, spacing, offset)
    return Sampler("ddpm", kind, table, flow=False, clip=clip, details=details, schedule=schedule)


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
        schedule, steps: the model's training schedule, and how many of its steps are taken.
        kind: what the network predicts.
        eta: 0 is deterministic, 1 has the posterior variance of DDPM.
        clip: bound on |x0|, the clean plan.
        keep_epsilon: what a step does with the noise estimate where x0 was clipped: keep the
            network's, as diffusers' ``DDIMScheduler`` does, or derive it again, as Diffuser does.
        spacing, offset: as in diffusers (``timestep_spacing``, ``steps_offset``).
        end_clean: the last step ends at alpha_bar = 1 (``set_alpha_to_one``).
    """
    if not eta >= 0.0:
        raise InputError(f"eta must be at least 0, got {eta}")
    count = schedule.steps if steps is None else steps
    timesteps = spaced_timesteps(schedule.steps, count, spacing, offset)
    final = 1.0 if end_clean else float(schedule.alpha_bar[0])
    table = []
    for timestep in timesteps:
        previous = timestep - schedule.steps // count
        now = float(schedule.alpha_bar[timestep])
        after = float(schedule.alpha_bar[previous]) if previous >= 0 else final
        deviation = eta * math.sqrt(max((1 - after) / (1 - now) * (1 - now / after), 0.0))
        if deviation**2 > 1 - after + 1e-12:
            raise InputError(f"eta={eta} asks for more noise than step {timestep} has; lower eta")
        update = {
            "from_state": 0.0,
            "from_sample": math.sqrt(after),
            "from_epsilon": math.sqrt(max(1 - after - deviation**2, 0.0)),
            "from_noise": deviation,
        }
        table.append(_diffusion_step(timestep, now, after, **update, draws_noise=eta > 0.0))
    details = {**_details(schedule, spacing, offset), "eta": eta, "end_clean": end_clean}
    return Sampler(
        "ddim",
        kind,
        table,
        flow=False,
        clip=clip,
        keep_epsilon=keep_epsilon,
        details=details,
        schedule=schedule,
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
    noise = np.abs(grid - grid[-1]).tolist()
    sign = 1.0 if grid[0] > grid[-1] else -1.0
    table = [
        Step(time * time_scale, 1.0 - now, now, 1.0 - after, after, 1.0, -sign * move, sign * move)
        for time, now, after, move in zip(
            grid[:-1].tolist(), noise[:-1], noise[1:], moves.tolist(), strict=True
        )
    ]
    details = {"times": [round(float(time), 9) for time in grid], "time_scale": time_scale}
    return Sampler("euler", kind, table, flow=True, clip=clip, velocity_sign=sign, details=details)


def _details(schedule: Schedule, spacing: Spacing, offset: int) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "schedule_digest": schedule.digest(),
        "training_steps": schedule.steps,
        "spacing": spacing,
        "offset": offset,
    }
