"""The steps and style of a CleanDiffuser agent repeat its loop, written here independently."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muninn.adapters.clean_diffuser import clean_diffuser_sampler
from muninn.adapters.styles import clean_diffuser_style, fixed
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.denoiser import ClassifierFreeGuidance
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.programs.plan import Program

BATCH, SHAPE, LEVELS = 3, (6, 4), 50


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(SHAPE[1] + 2, SHAPE[1])

    def forward(self, x: Tensor, noise: Tensor, condition: Tensor | None = None) -> Tensor:
        assert noise.shape == (len(x),)
        # As CleanDiffuser's embedding, which rounds its frequencies to the type of the level.
        noise = noise.to(x.dtype) if noise.is_floating_point() else 0.5 * noise.to(x.dtype)
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


class ModuleAgent(nn.Module):
    """CleanDiffuser's agents since they are modules."""

    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def level_type(agent: Any) -> torch.dtype:
    """Of what the agent tells its network: (batch,) levels."""
    return torch.float32 if isinstance(agent, nn.Module) else torch.long


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)  # tells -0.0 from 0.0


def agents_loop(agent: Any, solver: str, steps: int, context: Any, generator: Any) -> Tensor:
    """Solvers of a DiscreteDiffusionSDE in float32, up to the clipping after the loop."""
    visited = torch.linspace(0, LEVELS - 1, steps + 1, dtype=torch.long)
    alpha, sigma = agent.alpha[visited], agent.sigma[visited]
    ratio = torch.log(alpha / sigma)
    gain, spread = torch.zeros(steps + 1), torch.zeros(steps + 1)
    gain[1:] = ratio[:-1] - ratio[1:]
    spread[1:] = sigma[:-1] / sigma[1:] * (1 - (alpha[1:] / alpha[:-1]) ** 2).sqrt()
    network, prior, mask = agent.model_ema["diffusion"], context["prior"], agent.fix_mask
    x = torch.randn(prior.shape, generator=generator)
    x = x * (1.0 - mask) + prior * mask
    for i in reversed(range(1, steps + 1)):
        t = torch.full((len(x),), int(visited[i]), dtype=level_type(agent))
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
        if solver == "ddpm":
            kept = (sigma[i - 1] ** 2 - spread[i] ** 2 + 1e-8).sqrt()
            x = (alpha[i - 1] / alpha[i]) * (x - sigma[i] * eps) + kept * eps
            if i > 1:
                x += spread[i] * torch.randn(x.shape, generator=generator)
        elif solver == "ddim":
            x = alpha[i - 1] * ((x - sigma[i] * eps) / alpha[i]) + sigma[i - 1] * eps
        elif solver == "ode_dpmsolver_1":
            x = (alpha[i - 1] / alpha[i]) * x - sigma[i - 1] * torch.expm1(gain[i]) * eps
        else:
            x = (sigma[i - 1] / sigma[i]) * x - alpha[i - 1] * torch.expm1(-gain[i]) * x0
        x = x * (1.0 - mask) + prior * mask
    return x


SOLVERS = ["ddpm", "ddim", "ode_dpmsolver_1", "ode_dpmsolver++_1"]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("predict_noise", [False, True])
@pytest.mark.parametrize("bound", [None, 1.0, 0.3])
@pytest.mark.parametrize("module", [False, True])
def test_style_condition_and_steps_are_the_agents_loop_bit_for_bit(
    solver: str, predict_noise: bool, bound: float | None, module: bool
) -> None:
    agent = make_agent(predict_noise, bound)
    agent = ModuleAgent(vars(agent)) if module else agent
    steps = 20
    planner = Planner(
        clean_diffuser_style(agent),
        clean_diffuser_sampler(agent, steps, solver),
        SHAPE,
        condition=fixed(agent),
    )
    generator = seeded(0)
    context = {
        "prior": torch.randn(BATCH, *SHAPE, generator=generator),
        "condition": torch.randn(BATCH, 1, generator=generator),
    }
    theirs, ours = seeded(7), seeded(7)
    with torch.no_grad():
        own = agents_loop(agent, solver, steps, context, theirs)
    assert torch.equal(bits(planner.sample(context, generator=ours)), bits(own))
    assert torch.equal(ours.get_state(), theirs.get_state())  # what is drawn next is the same
    # x * (1 - 1) + prior * 1
    assert torch.equal(own[:, 0, 2:], context["prior"][:, 0, 2:])
    noise = planner.draw_noise(BATCH, generator=seeded(7))
    assert set(noise.steps) == (set(range(steps - 1)) if solver == "ddpm" else set())
    full, record = Runtime(planner, Program.full(planner.sampler.kind))(context, noise=noise)
    assert torch.equal(bits(full), bits(own)) and record.evaluations.tolist() == [steps] * BATCH


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("predict_noise", [False, True])
@pytest.mark.parametrize("bound", [None, 0.3])
def test_the_table_of_forecasts_is_the_same_step_but_for_rounding(
    solver: str, predict_noise: bool, bound: float | None
) -> None:
    sampler = clean_diffuser_sampler(make_agent(predict_noise, bound), 20, solver)
    merged = Sampler(sampler.name, sampler.kind, sampler.steps, flow=False, clip=sampler.clip)
    rounded_otherwise = 0
    for index, step in enumerate(sampler.steps):
        x, prediction, noise = torch.randn(3, BATCH, *SHAPE, generator=seeded(index))
        exact, close = (each.step(x, prediction, index, noise) for each in (sampler, merged))
        assert float((exact - close).abs().max()) < 1e-5 / step.signal
        rounded_otherwise += not torch.equal(exact, close)
        other = sampler.step(x, prediction, index, noise, "v")
        assert torch.equal(other, merged.step(x, prediction, index, noise, "v"))
    assert rounded_otherwise > 0  # or repeating the agent's operations would be needless


def test_roundings_have_their_own_identity_and_ddpm_needs_its_draws() -> None:
    described = [clean_diffuser_sampler(make_agent(), 20, s).describe() for s in SOLVERS]
    assert [each["solver"] for each in described] == SOLVERS
    x = torch.zeros(1, *SHAPE)
    sampler = clean_diffuser_sampler(make_agent(), 20, "ddpm")
    with pytest.raises(InputError, match="step 2 of ddpm needs its noise draw"):
        sampler.step(x, x, 2)
    assert sampler.step(x, x, 19).shape == x.shape  # the last one draws none


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
        torch.cat([x, x]), torch.full((4,), 5), torch.cat([condition, 0 * condition])
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
