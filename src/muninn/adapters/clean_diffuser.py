"""The step table of a CleanDiffuser agent: its DDPM and DDIM end at their own smallest noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.sampler import Sampler, Step

_DDIM = ("ddim", "ode_dpmsolver_1", "ode_dpmsolver++_1")  # three roundings of one step
_SUPPORTED = ("ddpm", *_DDIM)


def clean_diffuser_sampler(agent: Any, steps: int, solver: str = "ddim") -> Sampler:
    """The steps of ``agent.sample(solver=solver, sample_steps=steps)``, uniform schedule.

    Its last step ends at the noise of timestep 0, not at none, and its DDPM adds 1e-8 to a
    variance; both are in the table. After its loop CleanDiffuser clips the trajectory once more to
    ``x_min`` and ``x_max``: do the same with what the planner returns.

    Args:
        agent: a DiscreteDiffusionSDE.
        steps: ``sample_steps``.
        solver: ``ddpm``, ``ddim`` or a first-order ODE solver, which computes the same as ``ddim``.

    Raises:
        InputError: another solver or class, or bounds that are not one number, both ways.
    """
    if solver not in _SUPPORTED:
        raise InputError(
            f"solver {solver!r} is not supported; supported are {', '.join(_SUPPORTED)}. A solver "
            "of higher order (2M) already reuses evaluations: take fewer steps with it instead"
        )
    if not isinstance(getattr(agent, "alpha", None), Tensor):
        raise InputError(
            f"{type(agent).__name__} has no table of noise levels; only DiscreteDiffusionSDE is "
            "supported. For a rectified flow use muninn.euler"
        )
    if not 1 <= steps < agent.diffusion_steps:
        raise InputError(
            f"sample_steps must lie in [1, {agent.diffusion_steps - 1}], got {steps}; the model "
            f"knows {agent.diffusion_steps} noise levels"
        )
    visited = torch.linspace(0, agent.diffusion_steps - 1, steps + 1, dtype=torch.long).tolist()
    signals = agent.alpha.detach().double().cpu()[visited].tolist()
    noises = agent.sigma.detach().double().cpu()[visited].tolist()
    table = []
    for at in range(steps, 0, -1):
        signal, noise, after, left = signals[at], noises[at], signals[at - 1], noises[at - 1]
        spread = 0.0 if solver in _DDIM else left / noise * math.sqrt(1 - (signal / after) ** 2)
        kept = left if solver in _DDIM else math.sqrt(left**2 - spread**2 + 1e-8)
        table.append(
            Step(
                visited[at],
                signal,
                noise,
                after,
                left,
                from_state=0.0,
                from_sample=after,
                from_epsilon=kept,
                from_noise=spread if at > 1 else 0.0,
                draws_noise=solver == "ddpm" and at > 1,
            )
        )
    levels = [round(value, 9) for pair in zip(signals, noises, strict=True) for value in pair]
    return Sampler(
        "ddpm" if solver == "ddpm" else "ddim",
        "epsilon" if agent.predict_noise else "sample",
        table,
        flow=False,
        clip=_clip(agent),
        details={"framework": "CleanDiffuser", "levels": levels},
    )


def _clip(agent: Any) -> float | None:
    if agent.x_max is None and agent.x_min is None:
        return None
    bounds = {
        float(value)
        for bound, sign in ((agent.x_max, 1.0), (agent.x_min, -1.0))
        for value in ([math.inf] if bound is None else (sign * bound).unique().tolist())
    }
    if len(bounds) > 1:
        raise InputError(
            f"x_min and x_max bound the trajectory by {sorted(bounds)[:4]}...; supported is one "
            "number for all entries, x_min = -x_max"
        )
    return bounds.pop()
