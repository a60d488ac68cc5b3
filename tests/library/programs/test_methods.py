"""Every published method as a table is that method, step for step, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.methods import adams, dpm_solver, few_steps, heun, uni_pc
from muninn.programs.spacing import State, sampler_states
from runtime_cases import SHAPE
from sampler_cases import in_float64
from table_cases import (
    PREDICTION_TYPES,
    SCHEDULE,
    STEPS,
    assert_same_states,
    chosen,
    exact_planner,
    keep_double,
    scheduler_loop,
    visited,
    visiting_scheduler,
)

diffusers = pytest.importorskip("diffusers")
multistep = pytest.importorskip("diffusers.schedulers.scheduling_dpmsolver_multistep")

KINDS = ["epsilon", "sample", "v"]
SEEDS = range(3)


# -- fewer steps -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [None, "keep the noise", "derive the noise"])
@pytest.mark.parametrize("count", [5, 10, 20])
def test_fewer_steps_are_the_ddim_of_diffusers(kind: Any, clip: str | None, count: int) -> None:
    """Its own trailing spacing of its own timesteps; only its float32 table is replaced."""
    bound, keep = (None, False) if clip is None else (0.4, clip == "keep the noise")
    sampler = ddim(SCHEDULE, kind=kind, clip=bound, keep_epsilon=keep)
    planner = exact_planner(sampler)
    scheduler = diffusers.DDIMScheduler(
        STEPS,
        prediction_type=PREDICTION_TYPES[kind],
        timestep_spacing="trailing",
        clip_sample=clip is not None,
        clip_sample_range=bound or 1.0,
    )
    in_float64(scheduler, SCHEDULE, final_alpha_cumprod=torch.ones((), dtype=torch.float64))
    scheduler.set_timesteps(count)
    states = [sampler_states(sampler)[STEPS - 1 - int(t)] for t in scheduler.timesteps]
    noise = planner.draw_noise(seeds=SEEDS)
    expected = scheduler_loop(
        planner, scheduler, states, noise, use_clipped_model_output=clip == "derive the noise"
    )
    found = visited(planner, few_steps(sampler, states), noise)
    assert_same_states(found, expected)
    unclipped = exact_planner(ddim(SCHEDULE, kind=kind))
    plain = visited(unclipped, few_steps(unclipped.sampler, states), noise)
    assert torch.equal(plain[-1], found[-1]) == (clip is None)  # the bound was met


def test_few_steps_visit_states_between_those_of_a_short_sampler() -> None:
    """16 of 100 steps leave out timesteps at which the network may be asked."""
    known, sampler = ddim(SCHEDULE, kind="v"), ddim(SCHEDULE, 16, kind="v")
    planner = exact_planner(sampler, known)
    states = chosen(sampler, 7, 2.0)
    own = {step.timestep for step in sampler.steps}
    assert not own.issuperset(state.timestep for state in states)
    levels = Schedule("chosen", np.array([state.signal**2 for state in reversed(states)]))
    scheduler = diffusers.DDIMScheduler(
        len(states), prediction_type="v_prediction", clip_sample=False
    )
    in_float64(scheduler, levels, final_alpha_cumprod=torch.ones((), dtype=torch.float64))
    scheduler.set_timesteps(len(states))
    noise = planner.draw_noise(seeds=SEEDS)
    expected = scheduler_loop(planner, scheduler, states, noise)
    assert_same_states(visited(planner, few_steps(sampler, states), noise), expected)


@pytest.mark.parametrize("upward", [False, True])
def test_fewer_euler_steps_of_a_flow_in_both_directions_of_time(upward: bool) -> None:
    times = np.linspace(0.0, 1.0, 31) if upward else np.linspace(1.0, 0.0, 31)
    sampler = euler(times.tolist())
    planner = exact_planner(sampler)
    places = [0, 2, 5, 6, 14, 22, 30]
    states = [sampler_states(sampler)[place] for place in places[:-1]]
    noise = planner.draw_noise(seeds=SEEDS)
    x, expected = noise.initial, []
    for here, there in itertools.pairwise(times[places]):
        expected.append(x)
        x = x + (there - here) * planner.denoiser(x, torch.full((3,), here), None)
    assert_same_states(visited(planner, few_steps(sampler, states), noise), [*expected, x])


# -- multistep solvers -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("count", [2, 3, 9, 14, 15, 20])  # below 15 the end has lower orders
def test_dpm_solver(kind: Any, order: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_double(monkeypatch, multistep)
    planner = exact_planner(ddim(SCHEDULE, kind=kind))
    states = chosen(planner.sampler, count)
    scheduler = visiting_scheduler(
        diffusers.DPMSolverMultistepScheduler,
        states,
        prediction_type=PREDICTION_TYPES[kind],
        solver_order=order,
    )
    noise = planner.draw_noise(seeds=SEEDS)
    expected = scheduler_loop(planner, scheduler, states, noise)
    assert_same_states(
        visited(planner, dpm_solver(planner.sampler, states, order), noise), expected
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 3, 4, 9, 20])
def test_uni_pc(kind: Any, order: int, count: int) -> None:
    planner = exact_planner(ddim(SCHEDULE, kind=kind))
    states = chosen(planner.sampler, count)
    scheduler = visiting_scheduler(
        diffusers.UniPCMultistepScheduler,
        states,
        prediction_type=PREDICTION_TYPES[kind],
        solver_order=order,
        solver_type="bh2",
    )
    noise = planner.draw_noise(seeds=SEEDS)
    expected = scheduler_loop(planner, scheduler, states, noise)
    assert_same_states(visited(planner, uni_pc(planner.sampler, states, order), noise), expected)


def gap_noises(planner: Planner, states: Sequence[State], noise: Noise) -> list[Tensor]:
    """What the sampler's draws amount to between two states while its clean sample is zero."""
    steps = [step.timestep for step in planner.sampler.steps]
    places = [*(steps.index(state.timestep) for state in states), len(steps)]
    found = []
    for first, until in itertools.pairwise(places):
        x = torch.zeros_like(noise.initial)
        for step in range(first, until):
            xi = noise.at(step, slice(None))
            x = planner.sampler.step(x, torch.zeros_like(x), step, xi, "sample")
        found.append(x)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [6, 20])
def test_the_stochastic_dpm_solver_with_the_noise_of_ddpm(
    kind: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_double(monkeypatch, multistep)
    planner = exact_planner(ddpm(SCHEDULE, kind=kind))
    states = chosen(planner.sampler, count)
    noise = planner.draw_noise(seeds=SEEDS)
    scheduler = visiting_scheduler(
        diffusers.DPMSolverMultistepScheduler,
        states,
        prediction_type=PREDICTION_TYPES[kind],
        algorithm_type="sde-dpmsolver++",
    )
    draws = []
    ends = itertools.pairwise([*states, State(0, 1, 0)])
    for gap, (now, after) in zip(gap_noises(planner, states, noise), ends, strict=True):
        removed = now.signal * after.noise / (now.noise * after.signal)  # exp(-h)
        size = after.noise * (1.0 - removed**2) ** 0.5
        draws.append(gap / size if size else gap)
    assert not draws[-1].any()  # timestep 0 draws nothing
    expected = scheduler_loop(planner, scheduler, states, noise, draws=draws)
    assert_same_states(visited(planner, dpm_solver(planner.sampler, states), noise), expected)


# -- Heun and Adams-Bashforth ------------------------------------------------------------------


def heun_of_karras(planner: Planner, states: Sequence[State], x: Tensor) -> list[Tensor]:
    """Algorithm 1 of Karras et al. (2022), in x / signal; of a flow, in x itself."""
    sampler, seen = planner.sampler, []

    def slope(x: Tensor, state: State) -> Tensor:
        scaled = x if sampler.flow else x * state.signal
        seen.append(scaled)
        told = torch.full((len(x),), state.timestep, dtype=torch.float64)
        prediction = planner.denoiser(scaled, told, None)
        if sampler.flow:
            return prediction
        clean = sampler.convert(scaled, prediction, int(STEPS - 1 - state.timestep), "sample")
        return (x - clean) / (state.noise / state.signal)

    def time(state: State) -> float:
        return state.timestep if sampler.flow else state.noise / state.signal

    x = x if sampler.flow else x / states[0].signal
    for now, after in itertools.pairwise([*states, None]):
        here, there = time(now), 0.0 if after is None else time(after)
        first = slope(x, now)
        moved = x + (there - here) * first
        if after is not None:
            moved = x + (there - here) * 0.5 * (first + slope(moved, after))
        x = moved
    return [*seen, x]


@pytest.mark.parametrize("kind", [*KINDS, "velocity"])
def test_heun(kind: Any) -> None:
    sampler = euler(STEPS) if kind == "velocity" else ddim(SCHEDULE, kind=kind)
    planner = exact_planner(sampler)
    own = sampler_states(sampler)
    states = [own[place] for place in (0, 3, 20, 50, 80, 99)]
    noise = planner.draw_noise(seeds=SEEDS)
    table = heun(sampler, states)
    assert len(table.states) == 2 * len(states) - 1
    expected = heun_of_karras(planner, states, noise.initial)
    assert_same_states(visited(planner, table, noise), expected)


TEXTBOOK = {1: [1.0], 2: [-1 / 2, 3 / 2], 3: [5 / 12, -16 / 12, 23 / 12]}


@pytest.mark.parametrize("upward", [False, True])
@pytest.mark.parametrize("order", [2, 3])
def test_adams_bashforth_with_even_steps_has_the_textbook_weights(order: int, upward: bool) -> None:
    times = np.linspace(0.0, 1.0, 21) if upward else np.linspace(1.0, 0.0, 21)
    sampler = euler(times.tolist())
    planner = exact_planner(sampler)
    states = sampler_states(sampler)[::2]
    noise = planner.draw_noise(seeds=SEEDS)
    x, slopes, expected = noise.initial, [], []
    for state in states:
        expected.append(x)
        slopes.append(planner.denoiser(x, torch.full((3,), state.timestep), None))
        weights = TEXTBOOK[min(order, len(slopes))]
        mean = sum(w * s for w, s in zip(weights, slopes[-len(weights) :], strict=True))
        x = x + (times[2] - times[0]) * mean
    assert_same_states(visited(planner, adams(sampler, states, order), noise), [*expected, x])


@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("order", [2, 3])
def test_adams_bashforth_integrates_polynomials_over_uneven_steps(order: int, flow: bool) -> None:
    """The velocity of a flow, or the noise of a diffusion, of degree order - 1 in its variable."""
    sampler: Sampler = euler(40) if flow else ddim(SCHEDULE, kind="epsilon")
    own = sampler_states(sampler)
    states = [own[place] for place in (0, 1, 4, 9, 20, 26, 39)]
    levels = np.array([s.noise if flow else s.noise / s.signal for s in states] + [0.0])
    told = np.array([state.timestep for state in states])

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        at = levels[np.abs(told - float(timestep[0])).argmin()]
        return torch.full_like(x, float(0.3 + at + (at**2 if order == 3 else 0.0)))

    planner = Planner(denoise, sampler, SHAPE, dtype=torch.float64)
    found = visited(planner, adams(sampler, states, order), planner.draw_noise(seeds=[0]))
    scale = [1.0 if flow else state.signal for state in states] + [1.0]
    integral = 0.3 * levels + levels**2 / 2 + (levels**3 / 3 if order == 3 else 0.0)
    start = order - 1  # earlier steps have fewer slopes
    for place in range(start, len(states)):
        gained = found[place + 1] / scale[place + 1] - found[place] / scale[place]
        wanted = float(integral[place + 1] - integral[place])
        assert gained.flatten().tolist() == pytest.approx([wanted] * gained.numel(), abs=1e-10)
