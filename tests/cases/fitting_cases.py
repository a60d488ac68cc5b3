"""An affine denoiser, and fits on calls of a planner, judged on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from analytic import join, levels
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.anchors import full_chain
from muninn.programs.fitting import Fitter
from muninn.programs.methods import few_steps
from muninn.programs.spacing import sampler_states, spread_steps
from muninn.programs.table import Table

SHAPE, STEPS, CALLS = (4, 2), 20, 64
DDIM = ddim(Schedule.cosine(STEPS), kind="sample")


@dataclass(frozen=True, eq=False)
class GaussianDenoiser:
    """Exact prediction for x0 ~ N(mean, deviation^2), entries apart: affine in the state."""

    sampler: Sampler
    mean: Tensor
    deviation: Tensor

    def __call__(self, x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        signal, noise = levels(self.sampler, timestep, x)
        gain = signal * self.deviation**2 / (signal**2 * self.deviation**2 + noise**2)
        sample = self.mean + gain * (x.double() - signal * self.mean)
        epsilon = (x.double() - signal * sample) / noise
        sign = self.sampler.velocity_sign
        return join(self.sampler.kind, sample, epsilon, signal, noise, sign).to(x.dtype)


def gaussian(sampler: Sampler = DDIM, deviation: tuple[float, ...] = (0.4,)) -> Planner:
    mean = torch.tensor([0.3, -0.8], dtype=torch.float64)
    denoiser = GaussianDenoiser(sampler, mean, torch.tensor(deviation, dtype=torch.float64))
    return Planner(denoiser, sampler, SHAPE)


def fitter(
    planner: Planner, context: Any = None, calls: int = CALLS, fit: int | None = None, **more: Any
) -> Fitter:
    noise = planner.draw_noise(seeds=range(calls))
    chain = more.pop("chain", None)
    if chain is None:
        chain = full_chain(planner, context, noise, 1, 32).states
    return Fitter(
        planner, context, noise, chain, round(0.6 * calls) if fit is None else fit, **more
    )


def based(planner: Planner, count: int, build: Callable[..., Table] = few_steps) -> Table:
    states = sampler_states(planner.sampler)
    return build(planner.sampler, [states[step] for step in spread_steps(len(states), count)])


def fresh(planner: Planner, count: int = 200) -> Noise:
    return planner.draw_noise(seeds=range(10_000, 10_000 + count))


def error(planner: Planner, table: Table, context: Any = None) -> float:
    """Root-mean-square deviation on calls that nobody fitted on."""
    noise = fresh(planner)
    full = planner.sample(context, noise=noise)
    got, record = runtime_for(planner, table)(context, noise=noise)
    assert record.fallbacks == 0
    return float(rms_step(full, got).square().mean().sqrt())


def arrival(planner: Planner, table: Table) -> list[float]:
    """Mean distance of the states that a table evaluates from those of full compute."""
    seen: dict[float, list[Tensor]] = {}

    def watching(x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        seen.setdefault(float(timestep[0]), []).append(x.clone())
        return planner.denoiser(x, timestep, context)

    watched, noise = replace(planner, denoiser=watching), fresh(planner)
    watched.sample(noise=noise)
    runtime_for(watched, table)(noise=noise)
    return [float(rms_step(*seen[state.timestep]).mean()) for state in table.states]
