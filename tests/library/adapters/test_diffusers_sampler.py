"""A DiffusersSampler steps as diffusers' schedulers do, bit for bit, in float32."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerDiscreteScheduler
from torch import Tensor

from muninn.adapters.diffusers_sampler import DiffusersSampler
from muninn.errors import InputError
from muninn.model.sampler import Sampler

SHAPE = (2, 16, 3)
SPACINGS = [("leading", 0), ("leading", 1), ("trailing", 0), ("linspace", 0)]
KINDS = ["epsilon", "sample", "v_prediction"]


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)  # tells -0.0 from 0.0


def tabled(sampler: Sampler) -> Sampler:
    """The same table without diffusers' rounding."""
    return Sampler(
        sampler.name,
        sampler.kind,
        sampler.steps,
        flow=False,
        clip=sampler.clip,
        keep_epsilon=sampler.keep_epsilon,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheduler", [DDPMScheduler, DDIMScheduler])
def test_every_step_rounds_as_diffusers_does(scheduler: Any, kind: str) -> None:
    rounded_otherwise = 0
    for steps, (spacing, offset), clip, beta in itertools.product(
        [16, 50], SPACINGS, [None, 1.0, 0.7], ["squaredcos_cap_v2", "linear"]
    ):
        extra = {} if scheduler is DDPMScheduler else {"set_alpha_to_one": offset == 0}
        theirs = scheduler(
            100,
            beta_schedule=beta,
            prediction_type=kind,
            clip_sample=clip is not None,
            clip_sample_range=clip or 1.0,
            timestep_spacing=spacing,
            steps_offset=offset,
            **extra,
        )
        ours = DiffusersSampler(theirs, steps)
        table = tabled(ours)
        theirs.set_timesteps(steps)
        generator = torch.Generator().manual_seed(steps)
        x = torch.randn(SHAPE, generator=generator)
        for index, timestep in enumerate(theirs.timesteps):
            prediction = torch.randn(SHAPE, generator=generator)
            seed = torch.Generator().manual_seed(index)
            expected = theirs.step(prediction, timestep, x, generator=seed).prev_sample
            noise = None
            if ours.steps[index].draws_noise:
                noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(index))
            after = ours.step(x, prediction, index, noise)
            assert torch.equal(bits(after), bits(expected)), (steps, spacing, clip, beta, index)
            merged = table.step(x, prediction, index, noise)
            rounded_otherwise += not torch.equal(merged, expected)
            # diffusers takes 1 - alpha in float32: off by up to 6e-8 of an alpha near 1
            scale = 1.0 + float((x.abs() + prediction.abs()).max()) / ours.steps[index].signal
            assert float((merged - expected).abs().max()) < 1e-4 * scale
            x = expected.clamp(-3, 3)
    assert rounded_otherwise > 0  # or this class would be needless


def test_it_describes_itself_as_its_table_and_forecasts_of_another_kind_use_it() -> None:
    sampler = DiffusersSampler(DDIMScheduler(100, clip_sample=False), 10)
    described = sampler.describe()
    assert described["name"] == "ddim" and described["steps"] == 10
    assert described["training_steps"] == 100
    x, sample = torch.randn(SHAPE), torch.randn(SHAPE)
    assert torch.equal(
        sampler.step(x, sample, 3, kind="sample"), tabled(sampler).step(x, sample, 3, kind="sample")
    )


def test_the_scheduler_is_left_as_it_was() -> None:
    scheduler = DDPMScheduler(100)
    scheduler.set_timesteps(7)
    before = scheduler.timesteps.clone()
    DiffusersSampler(scheduler, 20)
    assert scheduler.num_inference_steps == 7 and torch.equal(scheduler.timesteps, before)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (
            EulerDiscreteScheduler(100),
            "EulerDiscreteScheduler is not supported; supported are DDPM",
        ),
        (DDPMScheduler(100, thresholding=True), "thresholding is not supported"),
        (DDPMScheduler(100, variance_type="fixed_large"), "variance_type 'fixed_large'"),
        (DDIMScheduler(100, rescale_betas_zero_snr=True), "alpha_bar must lie in"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(scheduler: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DiffusersSampler(scheduler, 10)


def test_a_step_without_its_draw_is_refused() -> None:
    sampler = DiffusersSampler(DDPMScheduler(100), 10)
    with pytest.raises(InputError, match="step 2 of ddpm needs its noise draw"):
        sampler.step(torch.zeros(SHAPE), torch.zeros(SHAPE), 2)
