"""Every Lipschitz constant equals its closed form and autograd on the real scheduler."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from analytic import join
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from sampler_cases import PREDICTION_TYPES, SCHEDULES, in_float64

CLIP = 0.9
ONE = torch.tensor(1.0, dtype=torch.float64)


def slopes(step: Any, x: Tensor, prediction: Tensor) -> tuple[float, float]:
    """|d next / d state| and |d next / d prediction| of a scalar step, by autograd."""
    x, prediction = x.clone().requires_grad_(True), prediction.clone().requires_grad_(True)
    grads = torch.autograd.grad(step(prediction, x).sum(), (x, prediction), allow_unused=True)
    state, own = (0.0 if grad is None else abs(float(grad)) for grad in grads)
    return state, own


def piece(sampler: Sampler, index: int, kind: Kind, sample: float) -> tuple[Tensor, Tensor]:
    """A state and a prediction of ``kind`` that say the given clean sample, (1, 1) each."""
    step = sampler.steps[index]
    epsilon = torch.full((1, 1), 0.37, dtype=torch.float64)
    clean = torch.full((1, 1), sample, dtype=torch.float64)
    x = step.signal * clean + step.noise * epsilon
    return x, join(kind, clean, epsilon, step.signal, step.noise)


def tables(sampler: Sampler) -> tuple[list[float], list[float]]:
    now = [step.signal**2 for step in sampler.steps]
    return now, [step.next_signal**2 for step in sampler.steps]


@pytest.mark.parametrize("steps", [100, 17])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddpm_coefficients_equal_the_table_of_the_method(name: str, steps: int) -> None:
    sampler = ddpm(SCHEDULES[name](100), steps)
    clipped = ddpm(SCHEDULES[name](100), steps, clip=CLIP)
    for index, (now, after) in enumerate(zip(*tables(sampler), strict=True)):
        alpha, beta = now / after, 1 - now / after
        epsilon = (1 / math.sqrt(alpha), beta / (math.sqrt(alpha) * math.sqrt(1 - now)))
        sample = (
            math.sqrt(alpha) * (1 - after) / (1 - now),
            math.sqrt(after) * beta / (1 - now),
        )
        assert sampler.coefficients(index, "epsilon") == pytest.approx(epsilon, rel=1e-9)
        assert sampler.coefficients(index, "sample") == pytest.approx(sample, rel=1e-9, abs=1e-15)
        # clipping a DDPM step only ever flattens it
        assert clipped.coefficients(index, "epsilon") == pytest.approx(epsilon, rel=1e-9)
        assert clipped.coefficients(index, "sample") == pytest.approx(sample, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("end_clean", [True, False])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddim_coefficients_equal_the_table_of_the_method(
    name: str, eta: float, end_clean: bool
) -> None:
    fields: dict[str, Any] = {"eta": eta, "end_clean": end_clean}
    schedule = SCHEDULES[name](100)
    sampler = ddim(schedule, 20, **fields)
    raw = ddim(schedule, 20, clip=CLIP, keep_epsilon=True, **fields)
    derived = ddim(schedule, 20, clip=CLIP, keep_epsilon=False, **fields)
    for index, (now, after) in enumerate(zip(*tables(sampler), strict=True)):
        deviation = eta * math.sqrt((1 - after) / (1 - now)) * math.sqrt(1 - now / after)
        s = math.sqrt(max(1 - after - deviation**2, 0.0))
        k_epsilon, k_sample = math.sqrt(after / now), s / math.sqrt(1 - now)
        k_v = math.sqrt(after * now) + s * math.sqrt(1 - now)
        l_epsilon = abs(s - k_epsilon * math.sqrt(1 - now))
        l_sample = abs(math.sqrt(after) - k_sample * math.sqrt(now))
        l_v = abs(s * math.sqrt(now) - math.sqrt(after * (1 - now)))
        # the differences cancel: 1e-16 of terms as large as 1 / signal
        near = {"rel": 1e-8, "abs": 1e-12 / math.sqrt(now)}
        assert sampler.coefficients(index, "epsilon") == pytest.approx(
            (k_epsilon, l_epsilon), **near
        )
        assert sampler.coefficients(index, "sample") == pytest.approx((k_sample, l_sample), **near)
        assert sampler.coefficients(index, "v") == pytest.approx((k_v, l_v), **near)
        assert raw.coefficients(index, "epsilon")[1] == pytest.approx(max(l_epsilon, s), **near)
        assert raw.coefficients(index, "sample")[1] == pytest.approx(
            max(l_sample, k_sample * math.sqrt(now)), **near
        )
        assert derived.coefficients(index, "epsilon")[1] == pytest.approx(l_epsilon, **near)
        assert derived.coefficients(index, "sample")[1] == pytest.approx(l_sample, **near)


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("prediction_type", list(PREDICTION_TYPES))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddpm_coefficients_equal_autograd_on_diffusers(
    name: str, prediction_type: str, clip: float | None
) -> None:
    schedule, kind = SCHEDULES[name](100), PREDICTION_TYPES[prediction_type]
    theirs = in_float64(
        DDPMScheduler(
            100,
            beta_schedule=name,
            clip_sample=clip is not None,
            clip_sample_range=clip or 1.0,
            prediction_type=prediction_type,
        ),
        schedule,
        one=ONE,
    )
    theirs.set_timesteps(25)
    sampler = ddpm(schedule, 25, kind=kind, clip=clip)
    for index, timestep in enumerate(theirs.timesteps):

        def step(prediction: Tensor, x: Tensor, timestep: Tensor = timestep) -> Tensor:
            generator = torch.Generator().manual_seed(0)
            after: Tensor = theirs.step(prediction, timestep, x, generator=generator).prev_sample
            return after

        assert_largest_slopes(sampler, index, kind, step, clip)


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("prediction_type", list(PREDICTION_TYPES))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddim_coefficients_equal_autograd_on_diffusers(
    name: str, prediction_type: str, clip: float | None
) -> None:
    schedule, kind = SCHEDULES[name](100), PREDICTION_TYPES[prediction_type]
    theirs = in_float64(
        DDIMScheduler(
            100,
            beta_schedule=name,
            clip_sample=clip is not None,
            clip_sample_range=clip or 1.0,
            prediction_type=prediction_type,
        ),
        schedule,
        final_alpha_cumprod=ONE,
    )
    theirs.set_timesteps(20)
    for eta, keep_epsilon in [(0.0, True), (0.0, False), (0.5, True), (1.0, False)]:
        sampler = ddim(schedule, 20, kind=kind, eta=eta, clip=clip, keep_epsilon=keep_epsilon)
        for index, timestep in enumerate(theirs.timesteps):

            def step(
                prediction: Tensor,
                x: Tensor,
                timestep: Tensor = timestep,
                eta: float = eta,
                keep_epsilon: bool = keep_epsilon,
            ) -> Tensor:
                after: Tensor = theirs.step(
                    prediction,
                    timestep,
                    x,
                    eta=eta,
                    use_clipped_model_output=not keep_epsilon,
                    variance_noise=torch.zeros_like(x) if eta > 0 else None,
                ).prev_sample
                return after

            assert_largest_slopes(sampler, index, kind, step, clip)


def assert_largest_slopes(
    sampler: Sampler, index: int, kind: Kind, step: Any, clip: float | None
) -> None:
    """The coefficients are the slopes of the step, or the larger of its two pieces."""
    inside = slopes(step, *piece(sampler, index, kind, 0.5 * CLIP))
    outside = slopes(step, *piece(sampler, index, kind, 1.5 * CLIP))
    expected = tuple(max(pair) for pair in zip(inside, outside, strict=True))
    near = {"rel": 1e-8, "abs": 1e-12 / sampler.steps[index].signal}
    assert sampler.coefficients(index, kind) == pytest.approx(expected, **near), index
    if clip is None:
        assert inside == pytest.approx(outside, **near)  # an affine step has one piece


def test_euler_coefficients_are_one_and_the_time_step_as_autograd_says() -> None:
    theirs = FlowMatchEulerDiscreteScheduler(shift=2.0)
    theirs.set_timesteps(12)
    theirs.sigmas = theirs.sigmas.double()
    sampler = euler(theirs.sigmas.tolist())
    for index, timestep in enumerate(theirs.timesteps):

        def step(prediction: Tensor, x: Tensor, timestep: Tensor = timestep) -> Tensor:
            after: Tensor = theirs.step(prediction, timestep, x).prev_sample
            return after

        found = slopes(step, *piece(sampler, index, "velocity", 0.3))
        apart = float(abs(theirs.sigmas[index + 1] - theirs.sigmas[index]))
        assert sampler.coefficients(index) == pytest.approx((1.0, apart), rel=1e-12)
        assert sampler.coefficients(index) == pytest.approx(found, rel=1e-6)  # a float32 cast


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_epsilon_path_of_ddim_is_the_difference_of_noise_ratios(name: str) -> None:
    schedule: Schedule = SCHEDULES[name](100)
    ratio = np.sqrt((1 - schedule.alpha_bar) / schedule.alpha_bar)
    expected = np.abs(np.diff(np.concatenate([[0.0], ratio])))[::-1]
    np.testing.assert_allclose(ddim(schedule).sensitivity("epsilon"), expected, rtol=1e-8)


def test_the_sample_path_of_ddim_is_zero_at_every_step_but_the_last() -> None:
    path = ddim(Schedule.cosine(100), kind="sample").sensitivity()
    assert np.array_equal(path, [0.0] * 99 + [1.0])


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v"])
def test_paths_are_the_products_of_later_state_coefficients(kind: Kind) -> None:
    sampler = ddpm(Schedule.cosine(50), 12)
    pairs = [sampler.coefficients(index, kind) for index in range(12)]
    expected = [
        own * math.prod(state for state, _ in pairs[index + 1 :])
        for index, (_, own) in enumerate(pairs)
    ]
    np.testing.assert_allclose(sampler.sensitivity(kind), expected, rtol=1e-9, atol=1e-300)


def test_long_paths_neither_overflow_nor_underflow_on_the_way() -> None:
    path = ddim(Schedule.linear(1000)).sensitivity("epsilon")
    assert np.isfinite(path).all() and (path > 0).all()
