"""The steps of a CleanDiffuser agent as a sampler that rounds exactly as its own loop does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.model.sampler import Sampler, Step

_SUPPORTED = ("ddpm", "ddim", "ode_dpmsolver_1", "ode_dpmsolver++_1")  # 3 roundings of ddim


class _Coefficients(NamedTuple):
    """One step in 0-dimensional tensors, computed as the agent computes them.

    They stay on the agent's device: a GPU divides by a number of the host as it multiplies by the
    inverse, which rounds otherwise. ``carry`` and ``rest`` are the two factors of the solver's
    formula, ``deviation`` that of DDPM's noise.
    """

    signal: Tensor
    noise: Tensor
    carry: Tensor
    rest: Tensor
    deviation: Tensor


class _AgentSampler(Sampler):
    def __init__(self, agent: Any, steps: int, solver: str) -> None:
        visited = torch.linspace(0, agent.diffusion_steps - 1, steps + 1, dtype=torch.long)
        at = visited.to(agent.alpha.device)
        signals, noises = agent.alpha.detach()[at], agent.sigma.detach()[at]
        self._solver = solver
        self._coefficients = _coefficients(signals, noises, solver)
        levels = list(zip(signals.tolist(), noises.tolist(), strict=True))
        rounded = [round(value, 9) for pair in levels for value in pair]
        super().__init__(
            "ddpm" if solver == "ddpm" else "ddim",
            "epsilon" if agent.predict_noise else "sample",
            _table(visited.tolist(), levels, solver),
            flow=False,
            clip=_clip(agent),
            details={"framework": "CleanDiffuser", "solver": solver, "levels": rounded},
        )

    def _own_step(self, x: Tensor, prediction: Tensor, index: int, noise: Tensor | None) -> Tensor:
        """Next state; order and grouping are CleanDiffuser's."""
        at = self._coefficients[index]
        sample, epsilon = self._estimates(x, prediction, at)
        if self._solver == "ode_dpmsolver++_1":
            return at.carry * x - at.rest * sample
        if self._solver == "ode_dpmsolver_1":
            return at.carry * x - at.rest * epsilon
        if self._solver == "ddim":
            return at.carry * ((x - at.noise * epsilon) / at.signal) + at.rest * epsilon
        after = at.carry * (x - at.noise * epsilon) + at.rest * epsilon
        return after if noise is None else after + at.deviation * noise

    def _estimates(self, x: Tensor, p: Tensor, at: _Coefficients) -> tuple[Tensor, Tensor]:
        """(x0, eps): clipped is the network's own prediction, the other is derived from it."""
        if self.kind == "sample":
            sample = p if self.clip is None else p.clamp(-self.clip, self.clip)
            return sample, (x - at.signal * sample) / at.noise
        if self.clip is not None:
            reach = at.signal * self.clip
            p = p.clamp((x - reach) / at.noise, (x + reach) / at.noise)
        return (x - at.noise * p) / at.signal, p


def clean_diffuser_sampler(agent: Any, steps: int, solver: str = "ddim") -> Sampler:
    """The steps of ``agent.sample(solver=solver, sample_steps=steps)``, bit for bit.

    Its last step ends at the noise of timestep 0, not at none, and its DDPM adds 1e-8 to a
    variance; both are in the table. After its loop CleanDiffuser clips the trajectory once more to
    ``x_min`` and ``x_max``: do the same with what the planner returns. The agent is a
    DiscreteDiffusionSDE with a uniform schedule, on the device on which it samples; the first-order
    ODE solvers are ``ddim`` but for rounding. Another solver or class, or bounds that are not one
    number, both ways, are an InputError.
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
    return _AgentSampler(agent, steps, solver)


def _coefficients(signals: Tensor, noises: Tensor, solver: str) -> list[_Coefficients]:
    """Noisiest step first; ``signals`` and ``noises``, (steps + 1,), begin at the cleanest level.

    Vectors where CleanDiffuser computes with vectors, numbers where it does so step by step.
    """
    ratios = torch.log(signals / noises)
    gains = ratios[:-1] - ratios[1:]
    deviations = noises[:-1] / noises[1:] * (1 - (signals[1:] / signals[:-1]) ** 2).sqrt()
    result = []
    for at in range(len(signals) - 1, 0, -1):
        signal, noise, after, left = signals[at], noises[at], signals[at - 1], noises[at - 1]
        gain, deviation = gains[at - 1], deviations[at - 1]
        if solver == "ddpm":
            carry, rest = after / signal, (left**2 - deviation**2 + 1e-8).sqrt()
        elif solver == "ddim":
            carry, rest = after, left
        elif solver == "ode_dpmsolver_1":
            carry, rest = after / signal, left * torch.expm1(gain)
        else:
            carry, rest = left / noise, after * torch.expm1(-gain)
        result.append(_Coefficients(signal, noise, carry, rest, deviation))
    return result


def _table(visited: list[int], levels: list[tuple[float, float]], solver: str) -> list[Step]:
    table = []
    for at in range(len(visited) - 1, 0, -1):
        (signal, noise), (after, left) = levels[at], levels[at - 1]
        step = Step(visited[at], signal, noise, after, left, 0.0, after, from_epsilon=left)
        if solver == "ddpm":
            spread = left / noise * math.sqrt(1 - (signal / after) ** 2)
            kept = math.sqrt(left**2 - spread**2 + 1e-8)
            drawn = spread if at > 1 else 0.0
            step = replace(step, from_epsilon=kept, from_noise=drawn, draws_noise=at > 1)
        table.append(step)
    return table


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
