"""Samplers equal diffusers' schedulers step for step, and speak every parameterisation.

The diffusers schedulers keep float32 tables. Their step code is exact in any precision, so the
comparisons hand them Muninn's float64 table and compare in float64; that the tables themselves
agree is tested with the schedules.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from analytic import join, split
from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from sampler_cases import PREDICTION_TYPES, SCHEDULES, in_float64

COUNTS = [(100, 100), (100, 13), (1000, 20)]
SPACINGS = [("leading", 0), ("leading", 1), ("trailing", 0), ("linspace", 0)]
SHAPE = (2, 3, 4)


def fits(training: int, steps: int, spacing: str, offset: int) -> bool:
    return not (spacing == "leading" and (steps - 1) * (training // steps) + offset >= training)


def assert_steps_agree(ours: Tensor, theirs: Tensor, where: object) -> None:
    # Both combine the same float64 numbers in another order; the terms of an epsilon step at
    # high noise are up to 1 / signal (thousands) times larger than their sum.
    scale = max(1.0, float(theirs.abs().max()))
    torch.testing.assert_close(
        ours, theirs, rtol=0.0, atol=1e-9 * scale, msg=lambda text: f"{where}: {text}"
    )


@pytest.mark.parametrize("prediction_type", list(PREDICTION_TYPES))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddpm_equals_diffusers_at_every_step(name: str, prediction_type: str) -> None:
    for (training, steps), (spacing, offset), clip in itertools.product(
        COUNTS, SPACINGS, [None, 1.0, 0.7]
    ):
        if not fits(training, steps, spacing, offset):
            continue
        schedule = SCHEDULES[name](training)
        theirs = in_float64(
            DDPMScheduler(
                training,
                beta_schedule=name,
                clip_sample=clip is not None,
                clip_sample_range=clip or 1.0,
                prediction_type=prediction_type,
                timestep_spacing=spacing,
                steps_offset=offset,
            ),
            schedule,
            one=torch.tensor(1.0, dtype=torch.float64),
        )
        theirs.set_timesteps(steps)
        kind = PREDICTION_TYPES[prediction_type]
        ours = ddpm(schedule, steps, kind=kind, clip=clip, spacing=spacing, offset=offset)
        assert [step.timestep for step in ours.steps] == theirs.timesteps.tolist()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
        for index, timestep in enumerate(theirs.timesteps):
            prediction = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            theirs_own = torch.Generator().manual_seed(index)
            expected = theirs.step(prediction, timestep, x, generator=theirs_own).prev_sample
            noise = None
            if ours.steps[index].draws_noise:
                ours_own = torch.Generator().manual_seed(index)
                noise = torch.randn(SHAPE, generator=ours_own, dtype=torch.float64)
            after = ours.step(x, prediction, index, noise)
            assert_steps_agree(after, expected, (training, steps, spacing, offset, clip, index))
            x = expected


@pytest.mark.parametrize("end_clean", [True, False])
@pytest.mark.parametrize("prediction_type", list(PREDICTION_TYPES))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddim_equals_diffusers_at_every_step(
    name: str, prediction_type: str, end_clean: bool
) -> None:
    grid = itertools.product(
        [(100, 25), (100, 13), (1000, 10)], SPACINGS, [0.0, 0.5, 1.0], [None, 0.8], [True, False]
    )
    for (training, steps), (spacing, offset), eta, clip, keep_epsilon in grid:
        if clip is None and not keep_epsilon:
            continue  # without clipping there is nothing to derive again
        schedule = SCHEDULES[name](training)
        final = 1.0 if end_clean else float(schedule.alpha_bar[0])
        theirs = in_float64(
            DDIMScheduler(
                training,
                beta_schedule=name,
                clip_sample=clip is not None,
                clip_sample_range=clip or 1.0,
                set_alpha_to_one=end_clean,
                prediction_type=prediction_type,
                timestep_spacing=spacing,
                steps_offset=offset,
            ),
            schedule,
            final_alpha_cumprod=torch.tensor(final, dtype=torch.float64),
        )
        theirs.set_timesteps(steps)
        ours = ddim(
            schedule,
            steps,
            kind=PREDICTION_TYPES[prediction_type],
            eta=eta,
            clip=clip,
            keep_epsilon=keep_epsilon,
            spacing=spacing,
            offset=offset,
            end_clean=end_clean,
        )
        assert [step.timestep for step in ours.steps] == theirs.timesteps.tolist()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
        for index, timestep in enumerate(theirs.timesteps):
            prediction = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            noise = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            expected = theirs.step(
                prediction,
                timestep,
                x,
                eta=eta,
                use_clipped_model_output=not keep_epsilon,
                variance_noise=noise if eta > 0 else None,
            ).prev_sample
            after = ours.step(x, prediction, index, noise if eta > 0 else None)
            where = (training, steps, spacing, offset, eta, clip, keep_epsilon, index)
            assert_steps_agree(after, expected, where)
            x = expected


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_ddim_over_all_training_steps_equals_diffusers(name: str) -> None:
    schedule = SCHEDULES[name](100)
    theirs = in_float64(
        DDIMScheduler(100, beta_schedule=name, clip_sample=False, prediction_type="sample"),
        schedule,
        final_alpha_cumprod=torch.tensor(1.0, dtype=torch.float64),
    )
    theirs.set_timesteps(100)
    ours = ddim(schedule, kind="sample")
    generator = torch.Generator().manual_seed(3)
    theirs_x = ours_x = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    for index, timestep in enumerate(theirs.timesteps):
        prediction = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
        theirs_x = theirs.step(prediction, timestep, theirs_x).prev_sample
        ours_x = ours.step(ours_x, prediction, index)  # on its own state: errors may accumulate
    torch.testing.assert_close(ours_x, theirs_x, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(ours_x, prediction, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 4, 10, 50])
def test_euler_equals_the_diffusers_flow_scheduler_at_every_step(steps: int, shift: float) -> None:
    theirs = FlowMatchEulerDiscreteScheduler(shift=shift)
    theirs.set_timesteps(steps)
    # Its step casts the state to float32, so states start from float32 values; with float64
    # sigmas the rest of its arithmetic is float64.
    theirs.sigmas = theirs.sigmas.double()
    ours = euler(theirs.sigmas.tolist(), time_scale=1000.0)
    assert len(ours) == steps
    told = torch.tensor([step.timestep for step in ours.steps])
    torch.testing.assert_close(told, theirs.timesteps, rtol=1e-6, atol=0.0)  # float32 product
    generator = torch.Generator().manual_seed(0)
    for index, timestep in enumerate(theirs.timesteps):
        x = torch.randn(SHAPE, generator=generator).double()
        velocity = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
        expected = theirs.step(velocity, timestep, x).prev_sample
        torch.testing.assert_close(ours.step(x, velocity, index), expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(
    "grid",
    [[1.0, 0.0], [0.0, 1.0], [0.7, 0.0], [0.3, 1.0], [1.0, 0.6, 0.1, 0.0], [0.0, 0.5, 0.6, 1.0]],
)
def test_an_euler_step_adds_velocity_times_time_in_either_direction(grid: list[float]) -> None:
    sampler = euler(grid)
    x = torch.randn(SHAPE, dtype=torch.float64)
    velocity = torch.randn(SHAPE, dtype=torch.float64)
    for index, (now, after) in enumerate(itertools.pairwise(grid)):
        expected = x + (after - now) * velocity
        torch.testing.assert_close(sampler.step(x, velocity, index), expected, rtol=0.0, atol=1e-14)
        assert sampler.steps[index].noise == pytest.approx(abs(now - grid[-1]))


def test_a_number_of_euler_steps_means_an_even_grid_from_noise_at_one() -> None:
    sampler = euler(4)
    assert [step.timestep for step in sampler.steps] == [1.0, 0.75, 0.5, 0.25]
    assert [step.noise for step in sampler.steps] == [1.0, 0.75, 0.5, 0.25]
    assert sampler.steps[-1].next_signal == 1.0


# -- parameterisations -----------------------------------------------------------------------


def samplers_of_every_kind(flow: bool, ascending: bool = False, **fields: Any) -> list[Sampler]:
    if flow:
        grid = np.linspace(0.05, 1.0, 7) if ascending else np.linspace(0.95, 0.0, 7)
        kinds: tuple[Kind, ...] = ("epsilon", "sample", "velocity")
        return [euler(grid.tolist(), kind=kind, **fields) for kind in kinds]
    schedule = Schedule.cosine(100)
    return [ddim(schedule, 9, kind=kind, **fields) for kind in ("epsilon", "sample", "v")]


@pytest.mark.parametrize(("flow", "ascending"), [(False, False), (True, False), (True, True)])
def test_conversions_say_the_same_sample_and_noise_and_invert_each_other(
    flow: bool, ascending: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    for source in samplers_of_every_kind(flow, ascending):
        sign = -1.0 if ascending else 1.0
        for index, step in enumerate(source.steps):
            sample = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            epsilon = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            x = step.signal * sample + step.noise * epsilon
            levels = (step.signal, step.noise, sign)
            prediction = join(source.kind, sample, epsilon, *levels)
            said = split(source.kind, x, prediction, *levels)
            # x / signal - ...: the clean sample loses 1 / signal in precision
            atol = 1e-13 / step.signal
            torch.testing.assert_close(said[0], sample, rtol=0.0, atol=atol)
            for target in samplers_of_every_kind(flow, ascending):
                converted = source.convert(x, prediction, index, target.kind)
                expected = join(target.kind, sample, epsilon, *levels)
                torch.testing.assert_close(converted, expected, rtol=0.0, atol=atol)
                back = target.convert(x, converted, index, source.kind)
                torch.testing.assert_close(back, prediction, rtol=0.0, atol=atol / step.noise)


@pytest.mark.parametrize("keep_epsilon", [True, False])
@pytest.mark.parametrize("clip", [None, 0.6])
@pytest.mark.parametrize("maker", ["ddpm", "ddim", "stochastic ddim", "euler"])
def test_a_step_gives_the_same_next_state_from_any_kind(
    maker: str, clip: float | None, keep_epsilon: bool
) -> None:
    schedule = Schedule.cosine(100)
    sampler = {
        "ddpm": lambda: ddpm(schedule, 12, clip=clip),
        "ddim": lambda: ddim(schedule, 12, clip=clip, keep_epsilon=keep_epsilon),
        "stochastic ddim": lambda: ddim(
            schedule, 12, eta=0.8, clip=clip, keep_epsilon=keep_epsilon
        ),
        "euler": lambda: euler(np.linspace(0.95, 0.0, 13).tolist(), clip=clip),
    }[maker]()
    generator = torch.Generator().manual_seed(2)
    for index, step in enumerate(sampler.steps):
        sample, epsilon, xi = torch.randn(3, *SHAPE, generator=generator, dtype=torch.float64)
        x = step.signal * sample + step.noise * epsilon
        prediction = join(sampler.kind, sample, epsilon, step.signal, step.noise)
        noise = xi if step.draws_noise else None
        expected = sampler.step(x, prediction, index, noise)
        for kind in sampler.kinds:
            value = sampler.convert(x, prediction, index, kind)
            after = sampler.step(x, value, index, noise, kind)
            torch.testing.assert_close(after, expected, rtol=0.0, atol=1e-11 / step.signal)


def test_clipping_bounds_the_clean_sample_and_may_be_asymptotically_inactive() -> None:
    schedule = Schedule.cosine(100)
    x = torch.full(SHAPE, 3.0, dtype=torch.float64)
    last = ddim(schedule, 10, kind="sample", clip=0.5)
    torch.testing.assert_close(last.step(x, x, 9), torch.full_like(x, 0.5))
    loose, free = ddim(schedule, 10, clip=1e9), ddim(schedule, 10)
    for index in range(10):
        torch.testing.assert_close(
            loose.step(x, x / 2, index), free.step(x, x / 2, index), rtol=1e-9, atol=1e-9
        )


def test_a_step_writes_to_neither_state_nor_prediction_nor_noise() -> None:
    for clip, kind in itertools.product([None, 0.5], ["epsilon", "sample", "v"]):
        sampler = ddim(Schedule.cosine(50), 5, eta=1.0, clip=clip)
        tensors = [torch.randn(SHAPE) for _ in range(3)]
        kept = [tensor.clone() for tensor in tensors]
        for index in range(5):
            after = sampler.step(tensors[0], tensors[1], index, tensors[2], kind)  # type: ignore[arg-type]
            after.fill_(7.0)
        for tensor, before in zip(tensors, kept, strict=True):
            assert torch.equal(tensor, before)


def test_steps_keep_the_dtype_of_the_state() -> None:
    for clip, kind in itertools.product([None, 1.0], ["epsilon", "sample", "v"]):
        sampler = ddpm(Schedule.cosine(50), 5, clip=clip)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            x = torch.randn(SHAPE).to(dtype)
            assert sampler.step(x, torch.randn(SHAPE), 2, x, kind).dtype == dtype


def test_draws_happen_exactly_where_the_plain_sampler_makes_them() -> None:
    schedule = Schedule.cosine(100)
    assert [s.draws_noise for s in ddpm(schedule, 4).steps] == [True, True, True, False]
    assert [s.draws_noise for s in ddpm(schedule, 4, offset=1).steps] == [True] * 4
    assert [s.draws_noise for s in ddim(schedule, 4, eta=0.3).steps] == [True] * 4
    assert not ddim(schedule, 4).stochastic and not euler(4).stochastic
    assert ddpm(schedule, 4).stochastic and ddim(schedule, 4, eta=0.3).stochastic


def test_equal_samplers_describe_themselves_equally_and_others_do_not() -> None:
    schedule = Schedule.cosine(100)
    base = ddim(schedule, 10, clip=1.0).describe()
    assert base == ddim(Schedule.cosine(100), 10, clip=1.0).describe()
    others = [
        ddim(schedule, 10),
        ddim(schedule, 11, clip=1.0),
        ddim(schedule, 10, clip=1.0, eta=0.1),
        ddim(schedule, 10, clip=1.0, kind="v"),
        ddim(schedule, 10, clip=1.0, keep_epsilon=True),
        ddim(schedule, 10, clip=1.0, offset=1),
        ddim(schedule, 10, clip=1.0, spacing="trailing"),
        ddim(schedule, 10, clip=1.0, end_clean=False),
        ddim(Schedule.linear(100), 10, clip=1.0),
        ddpm(schedule, 10, clip=1.0),
        euler(10, clip=1.0),
        euler(np.linspace(0.0, 1.0, 11).tolist(), clip=1.0),
    ]
    descriptions = [base, *(sampler.describe() for sampler in others)]
    for first, second in itertools.combinations(descriptions, 2):
        assert first != second


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ddim(Schedule.cosine(10), 11), "11 sampler steps of a model trained with 10"),
        (lambda: ddpm(Schedule.cosine(10), 11), "11 sampler steps of a model trained with 10"),
        (lambda: ddim(Schedule.cosine(10), 0), "at least one step, got 0"),
        (lambda: ddpm(Schedule.cosine(10), 0), "at least one step, got 0"),
        (lambda: ddim(Schedule.cosine(10), clip=0.0), r"clip must be a positive .* got 0.0"),
        (lambda: ddpm(Schedule.cosine(10), clip=-1.0), r"clip must be a positive .* got -1.0"),
        (lambda: ddim(Schedule.cosine(10), clip=math.nan), "clip must be a positive"),
        (lambda: ddim(Schedule.cosine(10), eta=-0.1), "eta must be at least 0, got -0.1"),
        (lambda: ddim(Schedule.cosine(10), eta=math.nan), "eta must be at least 0"),
        (lambda: ddim(Schedule.cosine(10), eta=3.0), "more noise than step"),
        (lambda: ddim(Schedule.cosine(10), 5, spacing="odd"), "unknown spacing 'odd'"),
        (lambda: ddim(Schedule.cosine(10), kind="velocity"), "cannot use .*'velocity'"),
        (lambda: euler(4, kind="v"), "cannot use a network that predicts 'v'"),
        (lambda: euler(0), "at least two values"),
        (lambda: euler([1.0]), "at least two values"),
        (lambda: euler([1.0, 0.5, 0.5, 0.0]), "strictly in one direction"),
        (lambda: euler([1.0, math.nan, 0.0]), "strictly in one direction"),
        (lambda: euler([1.0, 0.5, 0.1]), r"end at 0 or 1, got end 0.1"),
        (lambda: euler([1.5, 0.5, 0.0]), r"must lie in \[0, 1\]"),
    ],
)
def test_a_sampler_that_cannot_work_is_refused_with_its_reason(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_a_stochastic_step_without_its_draw_is_refused() -> None:
    sampler = ddpm(Schedule.cosine(10), 5)
    x = torch.zeros(SHAPE)
    with pytest.raises(InputError, match="step 1 of ddpm needs its noise draw"):
        sampler.step(x, x, 1)


@pytest.mark.parametrize("build", [ddim, ddpm])
def test_a_sampler_with_one_step_goes_straight_to_the_clean_sample(build: Any) -> None:
    sampler = build(Schedule.cosine(10), 1, kind="sample", spacing="trailing")
    x, clean, noise = torch.randn(3, *SHAPE, dtype=torch.float64)
    after = sampler.step(x, clean, 0, noise)
    torch.testing.assert_close(after, clean, rtol=0.0, atol=1e-9)  # DDPM adds 1e-10 of noise
