"""Caches as tables, the noise of stochastic samplers, conditions and guidance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analytic import mixture_denoiser
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.denoiser import ClassifierFreeGuidance
from muninn.model.planner import Planner
from muninn.model.sampler import DIFFUSION_KINDS, Sampler
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.caches import forecast, taylor
from muninn.programs.forecast import ORDERS, Forecast
from muninn.programs.methods import dpm_solver, few_steps, methods, uni_pc
from muninn.programs.plan import Program, Static
from muninn.programs.spacing import State, sampler_states
from runtime_cases import ANCHORS, SHAPE, pin_start
from runtime_cases import STEPS as SHORT
from runtime_cases import samplers as short_samplers
from table_cases import (
    SCHEDULE,
    assert_same_states,
    chosen,
    exact_planner,
    keep_double,
    sampled,
    scheduler_loop,
    visited,
    visiting_scheduler,
)
from taylor_cases import taylor_sample

SEEDS = range(3)
STOCHASTIC: dict[str, Sampler] = {
    "ddpm": ddpm(SCHEDULE, 25, kind="epsilon"),
    "clipped ddpm": ddpm(SCHEDULE, 25, kind="v", clip=0.5),
    "ddim": ddim(SCHEDULE, 25, kind="sample", eta=0.7),
    "clipped ddim": ddim(SCHEDULE, 25, kind="epsilon", eta=1.0, clip=0.5),
}


def on_grid(sampler: Sampler, anchors: Sequence[int]) -> list[State]:
    own = sampler_states(sampler)
    return [own[anchor] for anchor in anchors]


# -- caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v", "velocity"])
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("anchors", [(0, 3, 4, 10, 17, 24), (0, 6, 12, 18, 24), range(25)])
def test_taylor_series(kind: Any, order: int, anchors: Sequence[int]) -> None:
    sampler = euler(SHORT) if kind == "velocity" else ddim(SCHEDULE, SHORT, kind=kind)
    planner = exact_planner(sampler)
    noise = planner.draw_noise(seeds=SEEDS)
    expected = taylor_sample(planner, anchors, order, noise)
    table = taylor(sampler, on_grid(sampler, anchors), order)
    assert_same_states(visited(planner, table, noise)[-1:], [expected])


@pytest.mark.parametrize("name", ["ddim", "euler", "upward euler", "ddpm", "stochastic ddim"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("look_back", [False, True])
def test_a_forecast_is_the_existing_loop(name: str, order: int, look_back: bool) -> None:
    """In each quantity. The loop keeps its history in float32."""
    sampler = short_samplers("epsilon")[name]
    planner = exact_planner(sampler, condition=pin_start)
    noise, context = planner.draw_noise(seeds=SEEDS), torch.randn(3, 2, dtype=torch.float64)
    quantities = ("sample",) if sampler.stochastic else sampler.kinds
    if sampler.flow:  # pure noise carries no clean sample
        quantities = ("sample", "velocity")
    for quantity in quantities:
        program = Program(Forecast(quantity, order, look_back), Static(ANCHORS))
        expected, _ = Runtime(planner, program)(context, noise=noise)
        table = forecast(sampler, on_grid(sampler, ANCHORS), quantity, order, look_back)
        found = visited(planner, table, noise, context)[-1]
        torch.testing.assert_close(found, expected, rtol=0.0, atol=2e-5 if order < 3 else 1e-4)
        full = planner.sample(context, noise=noise)
        assert (expected - full).abs().max() > 1e-3  # there was something to get wrong


@given(
    st.sets(st.integers(1, SHORT - 2), min_size=2, max_size=10),
    st.sampled_from(["sample", "epsilon", "v"]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
)
def test_at_whatever_steps(inner: set[int], quantity: Any, order: int, look_back: bool) -> None:
    """A constant prediction becomes what the sampler makes of it."""
    sampler = ddim(SCHEDULE, SHORT, kind=quantity)
    planner = exact_planner(sampler)
    constant = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    planner = replace(planner, denoiser=lambda x, t, c: constant.expand_as(x).clone())
    noise = planner.draw_noise(seeds=SEEDS)
    table = forecast(sampler, on_grid(sampler, [0, *sorted(inner), 24]), quantity, order, look_back)
    found = visited(planner, table, noise)[-1]
    torch.testing.assert_close(found, planner.sample(noise=noise), rtol=1e-9, atol=1e-9)


# -- stochastic samplers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", list(STOCHASTIC))
@pytest.mark.parametrize("build", [few_steps, forecast])
def test_the_noise_is_exact_where_every_step_is_evaluated(name: str, build: Any) -> None:
    sampler = STOCHASTIC[name]
    planner = exact_planner(sampler)
    noise = planner.draw_noise(seeds=SEEDS)
    table = build(sampler, sampler_states(sampler))
    assert table.noise == (1.0,) * len(sampler)
    assert_same_states(visited(planner, table, noise), sampled(planner, noise))


@pytest.mark.parametrize("name", list(STOCHASTIC))
@pytest.mark.parametrize("build", [few_steps, dpm_solver, forecast])
def test_the_noise_is_exact_where_the_clean_sample_does_not_change(name: str, build: Any) -> None:
    """Then few evaluations give every state of full compute, draw for draw."""
    sampler = replace_kind(STOCHASTIC[name])
    held = 0.4 * torch.ones(SHAPE, dtype=torch.float64)
    planner = Planner(lambda x, t, c: held.expand_as(x), sampler, SHAPE, dtype=torch.float64)
    noise = planner.draw_noise(seeds=SEEDS)
    anchors = (0, 1, 5, 6, 13, 20)
    found = visited(planner, build(sampler, on_grid(sampler, anchors)), noise)
    full = sampled(planner, noise)
    assert_same_states(found, [full[step] for step in (*anchors, len(sampler))])


def replace_kind(sampler: Sampler) -> Sampler:
    if sampler.name == "ddpm":
        return ddpm(SCHEDULE, 25, kind="sample", clip=sampler.clip)
    return ddim(SCHEDULE, 25, kind="sample", eta=sampler.details["eta"], clip=sampler.clip)


def test_a_stochastic_sampler_derives_its_noise_estimate_again_under_clipping() -> None:
    """Even where it keeps the raw one itself: then no table is full compute."""
    keeping, deriving = (
        ddim(SCHEDULE, 25, eta=0.7, clip=0.5, keep_epsilon=keep) for keep in (True, False)
    )
    planner = exact_planner(keeping)
    noise = planner.draw_noise(seeds=SEEDS)
    found = visited(planner, few_steps(keeping, sampler_states(keeping)), noise)
    assert_same_states(found, sampled(exact_planner(deriving), noise))
    assert (found[-1] - planner.sample(noise=noise)).abs().max() > 0.1


def test_fewer_ancestral_steps_are_the_posterior_of_the_longer_step() -> None:
    """q(x_s | x_t, x0) of Ho et al. (2020), with the noise of the steps between added up."""
    sampler = ddpm(SCHEDULE, kind="epsilon")
    planner = exact_planner(sampler)
    noise, anchors = planner.draw_noise(seeds=SEEDS), (0, 10, 37, 60, 90, 99)
    states = on_grid(sampler, anchors)
    found = visited(planner, few_steps(sampler, states), noise)
    squares = []
    for place, (now, after) in enumerate(itertools.pairwise([*states, State(0, 1, 0)])):
        told = torch.full((3,), int(now.timestep))
        epsilon = planner.denoiser(found[place], told, None)
        clean = (found[place] - now.noise * epsilon) / now.signal
        alpha = (now.signal / after.signal) ** 2
        mean = alpha**0.5 * after.noise**2 / now.noise**2 * found[place]
        mean = mean + after.signal * (1 - alpha) / now.noise**2 * clean
        variance = after.noise**2 / now.noise**2 * (1 - alpha)
        if variance:
            squares.append((found[place + 1] - mean).pow(2).mean() / variance)
        else:
            torch.testing.assert_close(found[place + 1], mean, rtol=1e-10, atol=1e-10)
    # Standard normal draws, 24 an anchor: its law is tested exactly in test_table.py.
    assert len(squares) == 5 and 0.6 < float(torch.stack(squares).mean()) < 1.5


# -- conditions and guidance -------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("build", [few_steps, dpm_solver, uni_pc])
def test_conditions_overwrite_entries_as_in_the_published_loop(
    build: Any, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    diffusers = pytest.importorskip("diffusers")
    from diffusers.schedulers import scheduling_dpmsolver_multistep

    keep_double(monkeypatch, scheduling_dpmsolver_multistep)
    planner = exact_planner(
        ddim(SCHEDULE, kind="epsilon"), condition=pin_start, condition_when=when
    )
    states = chosen(planner.sampler, 8)
    kind = diffusers.DPMSolverMultistepScheduler
    kind = diffusers.UniPCMultistepScheduler if build is uni_pc else kind
    order = 1 if build is few_steps else 2
    scheduler = visiting_scheduler(kind, states, prediction_type="epsilon", solver_order=order)
    noise, context = planner.draw_noise(seeds=SEEDS), torch.randn(3, 2, dtype=torch.float64)
    expected = scheduler_loop(planner, scheduler, states, noise, context)
    found = visited(planner, build(planner.sampler, states), noise, context)
    assert torch.equal(found[0][:, 0], context if when == "before" else noise.initial[:, 0])
    assert all(torch.equal(state[:, 0], context) for state in found[1:])
    assert_same_states(found, expected)


def test_classifier_free_guidance_is_part_of_the_prediction() -> None:
    sampler = ddim(SCHEDULE, kind="epsilon")
    network = mixture_denoiser(sampler, SHAPE)
    guided = ClassifierFreeGuidance(network, lambda context: 0.0 * context, 1.8)
    planner = Planner(guided, sampler, SHAPE, dtype=torch.float64)
    states, context = chosen(sampler, 6), torch.randn(3, 2, dtype=torch.float64)
    noise = planner.draw_noise(seeds=SEEDS)
    x, expected = noise.initial, []
    for now, after in itertools.pairwise([*states, State(0, 1, 0)]):
        expected.append(x)
        told = torch.full((3,), int(now.timestep))
        with_context, without = network(x, told, context), network(x, told, 0.0 * context)
        epsilon = 1.8 * with_context - 0.8 * without
        x = after.signal * (x - now.noise * epsilon) / now.signal + after.noise * epsilon
    found = visited(planner, few_steps(sampler, states), noise, context)
    assert_same_states(found, [*expected, x])


# -- what is offered ---------------------------------------------------------------------------


def every_sampler() -> dict[str, Sampler]:
    found = {"euler": short_samplers()["euler"], "upward euler": short_samplers()["upward euler"]}
    for kind in DIFFUSION_KINDS:
        own = short_samplers(kind)
        found |= {f"{name}, {kind}": own[name] for name in own if not own[name].flow}
    return {**found, "unclean end": ddim(SCHEDULE, SHORT, kind="epsilon", end_clean=False)}


@pytest.mark.parametrize("name", list(every_sampler()))
def test_methods_that_take_the_samplers_steps_are_full_compute_at_all_of_them(name: str) -> None:
    """Solvers take other steps, but every table that is offered can be run."""
    sampler = every_sampler()[name]
    planner = exact_planner(sampler)
    noise = planner.draw_noise(seeds=SEEDS)
    full = planner.sample(noise=noise)
    for method in methods(sampler).values():
        table = method.build(sampler, on_grid(sampler, range(SHORT)))
        assert len(table.states) == (2 * SHORT - 1 if method.twice else SHORT)
        found = visited(planner, table, noise)[-1]
        same = torch.allclose(found, full, rtol=1e-10, atol=1e-10)
        assert same == (method.group in ("fewsteps", "taylor", "forecast"))


def test_methods_are_offered_where_they_fit() -> None:
    own = {"ddim": ddim(SCHEDULE), "ddpm": ddpm(SCHEDULE), "euler": euler(20)}
    groups = {
        name: {method.group for method in methods(sampler).values()}
        for name, sampler in own.items()
    }
    shared = {"fewsteps", "adams", "heun", "taylor", "forecast"}
    assert groups["ddim"] == shared | {"dpmsolver", "unipc"}
    assert groups["ddpm"] == {"fewsteps", "dpmsolver", "forecast"}
    assert groups["euler"] == shared
    assert not any(name.startswith("epsilon") for name in methods(own["euler"]))
    keeping = methods(ddim(SCHEDULE, clip=1.0, keep_epsilon=True))
    backward = {name for name in keeping if name.endswith("-back")}
    assert backward == {f"sample-{order}-back" for order in ORDERS}


def test_what_a_method_cannot_do_is_refused() -> None:
    sampler = ddpm(SCHEDULE, 16, kind="sample")
    with pytest.raises(InputError, match="its own steps only"):
        few_steps(sampler, chosen(sampler, 5))
    with pytest.raises(InputError, match="increasing steps of the sampler from its first on"):
        forecast(sampler, chosen(sampler, 5))
    with pytest.raises(InputError, match="increasing steps"):
        taylor(sampler, on_grid(sampler, (0, 4, 4, 15)))
    with pytest.raises(InputError, match="increasing steps"):
        taylor(sampler, on_grid(sampler, (1, 4, 15)))
    with pytest.raises(InputError, match="only the clean sample can be forecast"):
        forecast(sampler, on_grid(sampler, (0, 4, 15)), "epsilon")
    assert np.diff([state.noise for state in chosen(sampler, 5)]).max() < 0.0
