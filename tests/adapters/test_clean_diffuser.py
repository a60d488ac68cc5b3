"""The table and style of a CleanDiffuser agent repeat its loop, written here independently."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muninn.adapters.clean_diffuser import clean_diffuser_sampler
from muninn.adapters.styles import clean_diffuser_style, fixed
from muninn.denoiser import ClassifierFreeGuidance
from muninn.errors import InputError
from muninn.planner import Noise, Planner

BATCH, SHAPE, LEVELS = 3, (6, 4), 50


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(SHAPE[1] + 2, SHAPE[1])

    def forward(self, x: Tensor, noise: Tensor, condition: Tensor | None = None) -> Tensor:
        assert noise.dtype == x.dtype and noise.shape == (len(x),)  # as CleanDiffuser tells it
        told = torch.zeros(len(x), 1) if condition is None else condition
        told = torch.cat([told, noise[:, None] / LEVELS], dim=1)[:, None].expand(-1, SHAPE[0], -1)
        return torch.tanh(self.layer(torch.cat([x, told], dim=2)))


def make_agent(predict_noise: bool = False, bound: float | None = 1.0) -> Any:
    """What the loop reads of a DiscreteDiffusionSDE: cosine levels, averaged weights, a mask."""
    times = torch.linspace(1e-3, 1.0, LEVELS)
    times[-1] = 0.9946
    alpha = (torch.pi / 2 * (times + 0.008) / 1.008).cos() / torch.tensor(0.0124666).cos()
    mask = torch.zeros(1, *SHAPE)
    mask[:, 0, 2:] = 1.0
    return SimpleNamespace(
        alpha=alpha,
        sigma=(1 - alpha**2).sqrt(),
        diffusion_steps=LEVELS,
        predict_noise=predict_noise,
        x_max=None if bound is None else torch.full((1, *SHAPE), bound),
        x_min=None if bound is None else torch.full((1, *SHAPE), -bound),
        fix_mask=mask,
        model=nn.ModuleDict({"diffusion": Network()}),
        model_ema=nn.ModuleDict({"diffusion": Network().eval()}),
    )


def agents_loop(agent: Any, solver: str, steps: int, noise: Noise, context: Any) -> Tensor:
    visited = torch.linspace(0, LEVELS - 1, steps + 1, dtype=torch.long)
    alpha, sigma = agent.alpha[visited], agent.sigma[visited]
    network, prior, mask = agent.model_ema["diffusion"], context["prior"], agent.fix_mask
    x = noise.initial * (1 - mask) + prior * mask
    for i in reversed(range(1, steps + 1)):
        t = torch.full((len(x),), int(visited[i]), dtype=x.dtype)
        output = network(x, t, context.get("condition"))
        low, high = agent.x_min, agent.x_max
        if agent.predict_noise:
            if high is not None:
                low, high = (x - alpha[i] * high) / sigma[i], (x - alpha[i] * low) / sigma[i]
                output = output.clip(low, high)
            eps, x0 = output, (x - sigma[i] * output) / alpha[i]
        else:
            x0 = output if high is None else output.clip(low, high)
            eps = (x - alpha[i] * x0) / sigma[i]
        gain = torch.log(alpha[i - 1] / sigma[i - 1]) - torch.log(alpha[i] / sigma[i])
        if solver == "ddpm":
            spread = sigma[i - 1] / sigma[i] * (1 - (alpha[i] / alpha[i - 1]) ** 2).sqrt()
            kept = (sigma[i - 1] ** 2 - spread**2 + 1e-8).sqrt()
            x = alpha[i - 1] / alpha[i] * (x - sigma[i] * eps) + kept * eps
            if i > 1:
                x = x + spread * noise.steps[steps - i]
        elif solver == "ddim":
            x = alpha[i - 1] * ((x - sigma[i] * eps) / alpha[i]) + sigma[i - 1] * eps
        elif solver == "ode_dpmsolver_1":
            x = alpha[i - 1] / alpha[i] * x - sigma[i - 1] * torch.expm1(gain) * eps
        else:
            x = sigma[i - 1] / sigma[i] * x - alpha[i - 1] * torch.expm1(-gain) * x0
        x = x * (1 - mask) + prior * mask
    return x


@pytest.mark.parametrize("solver", ["ddpm", "ddim", "ode_dpmsolver_1", "ode_dpmsolver++_1"])
@pytest.mark.parametrize("predict_noise", [False, True])
@pytest.mark.parametrize("bound", [None, 1.0, 0.3])
def test_style_condition_and_table_are_the_agents_loop(
    solver: str, predict_noise: bool, bound: float | None
) -> None:
    agent = make_agent(predict_noise, bound)
    steps = 20
    planner = Planner(
        clean_diffuser_style(agent),
        clean_diffuser_sampler(agent, steps, solver),
        SHAPE,
        condition=fixed(agent),
    )
    generator = torch.Generator().manual_seed(0)
    context = {
        "prior": torch.randn(BATCH, *SHAPE, generator=generator),
        "condition": torch.randn(BATCH, 1, generator=generator),
    }
    noise = planner.draw_noise(BATCH, generator=generator)
    assert set(noise.steps) == (set(range(steps - 1)) if solver == "ddpm" else set())
    with torch.no_grad():
        own = agents_loop(agent, solver, steps, noise, context)
    ours = planner.sample(context, noise=noise)
    scale = float(own.abs().max())
    assert float((ours - own).abs().max()) < 1e-5 * max(scale, 1.0)  # measured 1.3e-6
    # x * (1 - 1) + prior * 1
    assert torch.equal(ours[:, 0, 2:], context["prior"][:, 0, 2:])


def test_the_averaged_weights_are_used() -> None:
    agent = make_agent()
    x, t = torch.ones(1, *SHAPE), torch.tensor([3])
    before = clean_diffuser_style(agent)(x, t, None)
    with torch.no_grad():
        agent.model["diffusion"].layer.weight.add_(1.0)
    assert torch.equal(clean_diffuser_style(agent)(x, t, None), before)
    with torch.no_grad():
        agent.model_ema["diffusion"].layer.weight.add_(1.0)
    assert not torch.equal(clean_diffuser_style(agent)(x, t, None), before)


def test_guidance_composes_as_the_agent_does() -> None:
    agent = make_agent()
    zeroed = lambda context: {**context, "condition": 0 * context["condition"]}  # noqa: E731
    guided = ClassifierFreeGuidance(clean_diffuser_style(agent), zeroed, 1.7)
    x, condition = torch.randn(2, *SHAPE), torch.randn(2, 1)
    doubled = agent.model_ema["diffusion"](
        torch.cat([x, x]), torch.full((4,), 5.0), torch.cat([condition, 0 * condition])
    )
    expected = 1.7 * doubled[:2] + (1 - 1.7) * doubled[2:]
    ours = guided(x, torch.tensor([5, 5]), {"condition": condition})
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    "solver", ["ode_dpmsolver++_2M", "sde_dpmsolver++_2M", "sde_dpmsolver_1", "heun", "rk4"]
)
def test_other_solvers_are_refused_by_name(solver: str) -> None:
    with pytest.raises(InputError, match=f"'{solver}' is not supported".replace("+", r"\+")):
        clean_diffuser_sampler(make_agent(), 10, solver)


def test_what_has_no_table_or_other_bounds_is_refused() -> None:
    with pytest.raises(InputError, match="SimpleNamespace has no table"):
        clean_diffuser_sampler(SimpleNamespace(t_diffusion=[0.0, 1.0]), 10)
    with pytest.raises(InputError, match=r"lie in \[1, 49\], got 50"):
        clean_diffuser_sampler(make_agent(), 50)
    agent = make_agent()
    agent.x_min = None
    with pytest.raises(InputError, match="x_min = -x_max"):
        clean_diffuser_sampler(agent, 10)
    agent.x_min = torch.full((1, *SHAPE), -2.0)
    with pytest.raises(InputError, match=r"by \[1\.0, 2\.0\]"):
        clean_diffuser_sampler(agent, 10)
