"""Planners in float64, tables run step for step, and diffusers' schedulers at states we choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import mixture_denoiser
from muninn.engines.tables import TableRuntime
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.programs.spacing import State, distinct, trained_states
from muninn.programs.table import Table
from runtime_cases import SHAPE

STEPS = 100
SCHEDULE = Schedule.linear(STEPS, end=0.06)  # noisy at its end, yet well conditioned
PREDICTION_TYPES = {"epsilon": "epsilon", "sample": "sample", "v": "v_prediction"}


def chosen(sampler: Sampler, count: int, power: float = 1.5) -> list[State]:
    """States that the network knows, dense at the clean end for a power above 1."""
    states = trained_states(sampler)
    left = np.linspace(1.0, 0.0, count) ** power
    return [states[place] for place in distinct((len(states) - 1) * (1.0 - left), len(states))]


def exact_planner(sampler: Sampler, known: Sampler | None = None, **fields: Any) -> Planner:
    """A mixture planner in float64; ``known`` has the noise levels that its network knows."""
    denoiser = mixture_denoiser(known or sampler, SHAPE)
    return Planner(denoiser, sampler, SHAPE, dtype=torch.float64, **fields)


class Seen:
    """A denoiser that remembers the states at which it was asked."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.states = inner, list[Tensor]()

    def __call__(self, x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        self.states.append(x.clone())
        found: Tensor = self.inner(x, timestep, context)
        return found


def visited(planner: Planner, table: Table, noise: Noise, context: Any = None) -> list[Tensor]:
    """Every state that a table evaluates, then its result."""
    seen = Seen(planner.denoiser)
    runtime = TableRuntime(replace(planner, denoiser=seen), table, on_failure="error")
    result, record = runtime(context, noise=noise)
    assert record.evaluations.tolist() == [len(table.states)] * len(result)
    return [*seen.states, result]


def sampled(planner: Planner, noise: Noise, context: Any = None) -> list[Tensor]:
    """The same of the plain sampler."""
    seen = Seen(planner.denoiser)
    result = replace(planner, denoiser=seen).sample(context, noise=noise)
    return [*seen.states, result]


def assert_same_states(
    found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-10
) -> None:
    """Equal step for step, to a tolerance relative to the size of the states."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


class _InDouble:
    """torch, except that what is cast to float32 stays exact."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def keep_double(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """Have a module of diffusers compute in float64 where it casts to float32."""
    monkeypatch.setattr(module, "torch", _InDouble())


def visiting_scheduler(kind: Any, states: Sequence[State], **options: Any) -> Any:
    """A multistep scheduler that visits just these states, with their exact noise levels.

    See :class:`muninn_bench.measure.multistep.MultistepPlanner`.
    """
    before, betas = 1.0, []
    for state in reversed(states):
        betas.append(1.0 - state.signal**2 / before)
        before = state.signal**2
    scheduler = kind(
        num_train_timesteps=len(betas),
        trained_betas=betas,
        timestep_spacing="trailing",
        **options,
    )
    scheduler.set_timesteps(len(betas))
    assert scheduler.timesteps.tolist() == list(range(len(betas)))[::-1]
    ratios = [state.noise / state.signal for state in states]
    scheduler.sigmas = torch.tensor([*ratios, 0.0], dtype=torch.float64)
    return scheduler


def scheduler_loop(
    planner: Planner,
    scheduler: Any,
    states: Sequence[State],
    noise: Noise,
    context: Any = None,
    draws: Sequence[Tensor] | None = None,
    **options: Any,
) -> list[Tensor]:
    """States at which a scheduler of diffusers has the planner's network asked, then its result."""
    x = planner.start(noise, context)
    seen = []
    for place, (timestep, state) in enumerate(zip(scheduler.timesteps, states, strict=True)):
        seen.append(x.clone())
        told = torch.full((len(x),), int(state.timestep))
        prediction = planner.denoiser(x, told, context)
        if draws is not None:
            options["variance_noise"] = draws[place]
        x = scheduler.step(prediction, int(timestep), x, **options).prev_sample
        if planner.condition is not None:
            x = planner.condition(x, context)
    return [*seen, x]
