"""The multistep solvers against diffusers' own loop and the closed form of a Gaussian."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import mixture_planner
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn_bench.measure.baselines import State, sampler_states, spacings
from muninn_bench.measure.multistep import ORDERS, MultistepPlanner, Solver

diffusers = pytest.importorskip("diffusers")

SHAPE = (8, 2)
STEPS = 100
SCHEDULE = Schedule.cosine(STEPS)
CASES = [(solver, order) for solver, orders in ORDERS.items() for order in orders]


def plain_loop(
    planner: Planner, solver: Solver, order: int, count: int
) -> tuple[Tensor, list[int]]:
    """diffusers as its users run it, default spacing, from the planner's first noise."""
    table = SCHEDULE.alpha_bar
    betas = 1.0 - table / np.concatenate([[1.0], table[:-1]])
    names = {"epsilon": "epsilon", "sample": "sample", "v": "v_prediction"}
    options: dict[str, Any] = {
        "num_train_timesteps": STEPS,
        "trained_betas": betas.tolist(),
        "prediction_type": names[planner.sampler.kind],
        "solver_order": order,
    }
    scheduler = (
        diffusers.DPMSolverMultistepScheduler(**options)
        if solver == "dpmsolver"
        else diffusers.UniPCMultistepScheduler(**options)
    )
    scheduler.set_timesteps(count)
    x = planner.draw_noise(seeds=range(4)).initial
    for timestep in scheduler.timesteps:
        told = torch.full((len(x),), int(timestep))
        x = scheduler.step(planner.denoiser(x, told, None), timestep, x).prev_sample
    return x, scheduler.timesteps.tolist()


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v"])
@pytest.mark.parametrize(("solver", "order"), CASES)
@pytest.mark.parametrize("count", [6, 20])
def test_at_diffusers_own_spacing_it_is_diffusers_own_loop(
    kind: Any, solver: Solver, order: int, count: int
) -> None:
    planner = mixture_planner(ddim(SCHEDULE, kind=kind), SHAPE)
    expected, visited = plain_loop(planner, solver, order, count)
    assert visited[-1] > 0  # diffusers' default never asks at timestep 0
    states = [sampler_states(planner.sampler)[STEPS - 1 - timestep] for timestep in visited]
    ours = MultistepPlanner(planner, states, solver, order)
    noise = planner.draw_noise(seeds=range(4))
    torch.testing.assert_close(ours.sample(None, noise=noise), expected, atol=2e-4, rtol=2e-3)
    assert torch.equal(ours.sample(None, noise=noise), ours.sample(None, noise=noise))


@pytest.mark.parametrize(("solver", "order"), CASES)
def test_timestep_zero_is_evaluated_and_the_gaussian_flow_is_met(
    solver: Solver, order: int
) -> None:
    """Along the exact flow of N(0, v) the state keeps its size over its standard deviation.

    What comes out is the posterior mean at the last state that was asked.
    """
    variance, told = 0.3, []

    def denoiser(x: Tensor, timestep: Tensor, context: object) -> Tensor:
        told.append(int(timestep[0]))
        power = float(SCHEDULE.alpha_bar[told[-1]])
        return x * (math.sqrt(power) * variance / (power * variance + 1.0 - power))

    planner = Planner(denoiser, ddim(SCHEDULE, kind="sample"), SHAPE, dtype=torch.float64)
    states = sampler_states(planner.sampler)
    noise = planner.draw_noise(seeds=range(3))

    def size(state: State) -> float:
        return math.sqrt(state.signal**2 * variance + state.noise**2)

    def exact(last: State) -> Tensor:
        mean = last.signal * variance / size(last) ** 2
        return noise.initial * (size(last) / size(states[0]) * mean)

    places = spacings(states, 80)["t ~ u^1.5"]
    visited = [states[place] for place in places]
    found = MultistepPlanner(planner, visited, solver, order).sample(None, noise=noise)
    assert told[0] == STEPS - 1 and told[-1] == 0 and len(told) == 80
    torch.testing.assert_close(found, exact(states[-1]), rtol=5e-3, atol=0.0)
    short = MultistepPlanner(planner, visited[:-8], solver, order).sample(None, noise=noise)
    assert ((short - exact(states[-1])) / exact(states[-1])).abs().min() > 0.02


def test_a_state_far_from_the_next_keeps_its_noise_level() -> None:
    """diffusers multiplies float32 betas, which is off by per cents from 99 to 60 directly."""
    planner = mixture_planner(ddim(SCHEDULE, kind="sample"), SHAPE)
    states = sampler_states(planner.sampler)
    solver = MultistepPlanner(planner, [states[0], states[40], states[-1]])
    solver.sample(None, noise=planner.draw_noise(seeds=[0]))
    found = solver._scheduler.sigmas.double()
    wanted = [state.noise / state.signal for state in (states[0], states[40], states[-1])]
    assert found.tolist() == pytest.approx([*wanted, 0.0], rel=1e-6)


def test_clipping_and_conditions_are_the_planners() -> None:
    def pin(x: Tensor, context: Any) -> Tensor:
        x[:, 0] = 0.25
        return x

    seen = []

    def denoiser(x: Tensor, timestep: Tensor, context: object) -> Tensor:
        seen.append(x[:, 0].clone())
        return 3.0 * torch.ones_like(x)

    planner = Planner(denoiser, ddim(SCHEDULE, kind="sample", clip=1.0), SHAPE, condition=pin)
    states = sampler_states(planner.sampler)[::11]
    found = MultistepPlanner(planner, states).sample(None, noise=planner.draw_noise(seeds=[0]))
    assert all((row == 0.25).all() for row in seen) and (found[:, 0] == 0.25).all()
    torch.testing.assert_close(found[:, 1:], torch.ones_like(found[:, 1:]))


def test_what_has_no_such_solver_is_refused() -> None:
    flow = mixture_planner(euler(10), SHAPE)
    with pytest.raises(InputError, match="diffusion model"):
        MultistepPlanner(flow, sampler_states(flow.sampler))
    chain = mixture_planner(ddpm(Schedule.cosine(10), kind="sample"), SHAPE)
    with pytest.raises(InputError, match="deterministic sampler"):
        MultistepPlanner(chain, sampler_states(chain.sampler))
    planner = mixture_planner(ddim(Schedule.cosine(10), kind="sample"), SHAPE)
    with pytest.raises(InputError, match="orders"):
        MultistepPlanner(planner, sampler_states(planner.sampler), "dpmsolver", 4)
    with pytest.raises(InputError, match="solver is one of"):
        MultistepPlanner(planner, sampler_states(planner.sampler), "heun")  # type: ignore[arg-type]
