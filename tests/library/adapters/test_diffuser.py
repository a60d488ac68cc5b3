"""Diffuser's style, condition and steps repeat its loop, written here independently."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import muninn
from diffuser_cases import GaussianDiffusion
from muninn.adapters.diffuser import diffuser_sampler
from muninn.adapters.styles import diffuser_style, inpainted
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Kind, Sampler
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from style_cases import ACTION, BATCH, HORIZON, SIZE, STATE, bits, seeded


class DiffuserNetwork(nn.Module):
    """Some function of trajectory and timestep, called as Diffuser's networks are."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inner = nn.Linear(SIZE + 1, 16)
            self.outer = nn.Linear(16, SIZE)

    def forward(self, x: Tensor, cond: dict[int, Tensor], time: Tensor) -> Tensor:
        assert set(cond) == {0, HORIZON - 1}
        told = (time / 100)[:, None, None].expand(-1, x.shape[1], 1)
        return self.outer(torch.tanh(self.inner(torch.cat([x, told], dim=2))))


def diffuser_loop(
    diffusion: GaussianDiffusion, cond: dict[int, Tensor], generator: torch.Generator
) -> Tensor:
    """Ancestral sampling with float32 tables; clamps the network's output in place."""

    def write(x: Tensor) -> Tensor:
        for step, state in cond.items():
            x[:, step, ACTION:] = state.clone()
        return x

    def told(table: Tensor, t: Tensor) -> Tensor:
        return table.gather(-1, t).reshape(-1, 1, 1)

    own = diffusion
    x = write(torch.randn(BATCH, HORIZON, SIZE, generator=generator))
    for i in reversed(range(len(own.betas))):
        t = torch.full((BATCH,), i)
        output = own.model(x, cond, t)
        if own.predict_epsilon:
            output = (
                told(own.sqrt_recip_alphas_cumprod, t) * x
                - told(own.sqrt_recipm1_alphas_cumprod, t) * output
            )
        if own.clip_denoised:
            output.clamp_(-1.0, 1.0)
        mean = told(own.posterior_mean_coef1, t) * output + told(own.posterior_mean_coef2, t) * x
        deviation = torch.exp(0.5 * told(own.posterior_log_variance_clipped, t))
        draw = torch.randn(x.shape, generator=generator)
        draw[t == 0] = 0
        x = write(mean + deviation * draw)
    return x


@pytest.mark.parametrize("epsilon", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("steps", [20, 64, 256])
def test_diffuser_style_is_diffusers_loop_bit_for_bit(
    steps: int, clip: bool, epsilon: bool
) -> None:
    model = DiffuserNetwork().eval()
    diffusion = GaussianDiffusion(model, torch.linspace(1e-4, 6.0 / steps, steps), epsilon, clip)
    sampler = diffuser_sampler(diffusion)
    planner = Planner(diffuser_style(model), sampler, (HORIZON, SIZE), condition=inpainted(ACTION))
    ends = torch.randn(2, BATCH, STATE, generator=seeded(1))
    cond = {0: ends[0], HORIZON - 1: ends[1]}
    theirs, ours = seeded(), seeded()
    with torch.no_grad():
        own = diffuser_loop(diffusion, cond, theirs)
    assert torch.equal(bits(planner.sample(cond, generator=ours)), bits(own))
    assert torch.equal(ours.get_state(), theirs.get_state())  # what is drawn next is the same
    noise = planner.draw_noise(BATCH, generator=seeded())
    full, record = Runtime(planner, Program.full(sampler.kind))(cond, noise=noise)
    assert torch.equal(bits(full), bits(own)) and record.evaluations.tolist() == [steps] * BATCH
    wrong = Planner(diffuser_style(model), sampler, (HORIZON, SIZE))
    assert float((wrong.sample(cond, noise=noise) - own).abs().max()) > 1e-2


@pytest.mark.parametrize("epsilon", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_the_table_of_forecasts_is_diffusers_step_but_for_rounding(
    epsilon: bool, clip: bool
) -> None:
    betas = torch.linspace(1e-4, 0.1, 64)
    sampler = diffuser_sampler(GaussianDiffusion(DiffuserNetwork(), betas, epsilon, clip))
    merged = Sampler(sampler.name, sampler.kind, sampler.steps, flow=False, clip=sampler.clip)
    published = muninn.ddpm(muninn.Schedule.from_betas("diffuser", betas.double().numpy()))
    rounded_otherwise = 0
    for index, (step, other) in enumerate(zip(sampler.steps, published.steps, strict=True)):
        assert step.timestep == other.timestep == 63 - index
        # Diffuser takes 1 / alpha_bar - 1 in float32: off by 6e-8 of as little as 1e-4
        assert step.noise == pytest.approx(other.noise, rel=1e-3)
        assert step.from_state == pytest.approx(other.from_state, rel=1e-3, abs=1e-6)
        x, prediction, noise = torch.randn(3, BATCH, HORIZON, SIZE, generator=seeded(index))
        exact, close = (each.step(x, prediction, index, noise) for each in (sampler, merged))
        assert float((exact - close).abs().max()) < 1e-5 / step.signal
        rounded_otherwise += not torch.equal(exact, close)
        forecast = sampler.step(x, prediction, index, noise, "v")
        assert torch.equal(forecast, merged.step(x, prediction, index, noise, "v"))
    assert rounded_otherwise > 0  # or repeating Diffuser's operations would be needless
    assert sampler.describe()["framework"] == "Diffuser"


@pytest.mark.parametrize("quantity", ["sample", "epsilon", "v"])
def test_a_cached_run_forecasts_with_the_same_draws(quantity: Kind) -> None:
    """The one draw more, at the last step, disturbs none of the others."""
    model, ends = DiffuserNetwork().eval(), torch.randn(2, BATCH, STATE, generator=seeded(1))
    exact = diffuser_sampler(GaussianDiffusion(model, torch.linspace(1e-3, 0.3, 20)))
    steps = [*exact.steps[:-1], replace(exact.steps[-1], draws_noise=False)]
    merged = Sampler("ddpm", "sample", steps, flow=False, clip=1.0)
    program = Program(Forecast(quantity, 1, False), Static((0, 1, 2, 5, 9, 13, 17, 19)))
    runs = []
    for sampler in (exact, merged):
        planner = Planner(
            diffuser_style(model), sampler, (HORIZON, SIZE), condition=inpainted(ACTION)
        )
        noise = planner.draw_noise(BATCH, generator=seeded())
        run, record = Runtime(planner, program)({0: ends[0], HORIZON - 1: ends[1]}, noise=noise)
        assert record.evaluations.tolist() == [8] * BATCH
        runs.append(run)
    torch.testing.assert_close(runs[0], runs[1], rtol=0.0, atol=1e-4)


def test_the_sampler_of_diffuser_says_what_it_misses() -> None:
    with pytest.raises(InputError, match="SimpleNamespace has no posterior_mean_coef1, posterior"):
        diffuser_sampler(
            SimpleNamespace(
                betas=torch.ones(3),
                sqrt_recip_alphas_cumprod=torch.ones(3),
                sqrt_recipm1_alphas_cumprod=torch.ones(3),
            )
        )
    x = torch.zeros(BATCH, HORIZON, SIZE)
    sampler = diffuser_sampler(GaussianDiffusion(DiffuserNetwork(), torch.full((8,), 0.1)))
    with pytest.raises(InputError, match="step 7 of ddpm needs its noise draw"):
        sampler.step(x, x, 7)


def test_a_certificate_tells_how_many_channels_are_actions() -> None:
    planner = Planner(
        diffuser_style(DiffuserNetwork()),
        muninn.ddpm(muninn.Schedule.cosine(20), kind="sample", clip=1.0),
        (HORIZON, SIZE),
        condition=inpainted(ACTION),
    )
    identity = planner.identity()
    assert identity["condition"] == "inpainted:2" and identity["model"]["weights"] is not None
    assert identity["model"]["denoiser"] == "diffuser_style.<locals>.denoiser"
