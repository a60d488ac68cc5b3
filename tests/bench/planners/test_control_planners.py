"""Planners that act: each is the plain loop of its paper, bit for bit, and can be certified."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import control_cases as cases
import muninn
from muninn.certify.metrics import measure, view_of
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Noise
from muninn.model.schedule import Schedule
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.networks.agent import Agent
from muninn_bench.planners.diffusion_ql import vp_schedule

S = cases.OBSERVATION


def drawn(name: str, rows: int = 3) -> tuple[Agent, Tensor, Noise]:
    agent = cases.agent(name)
    planner = cases.RECIPES[name].policy(agent).planner
    context = torch.rand(rows, S, generator=torch.Generator().manual_seed(1)) - 0.5
    return agent, context, planner.draw_noise(seeds=range(rows))


def ddim_step(x: Tensor, epsilon: Tensor, now: float, before: float) -> Tensor:
    """Clip the clean plan to 1, then noise as the clipped plan implies it."""
    a, s = math.sqrt(now), math.sqrt(1.0 - now)
    ab, sb = math.sqrt(before), math.sqrt(1.0 - before)
    clean = (x * (1.0 / a)).add(epsilon, alpha=-s / a).clamp(-1.0, 1.0)
    return (clean * (ab - sb * a / s)).add(x, alpha=sb / s)


def powers(schedule: Schedule) -> list[tuple[int, float, float]]:
    """Timesteps, noisiest first, with the signal power there and after the step."""
    table = schedule.alpha_bar.tolist()
    return [(t, table[t], table[t - 1] if t else 1.0) for t in reversed(range(len(table)))]


@pytest.mark.parametrize("name", ["diffuser", "adaptdiffuser"])
def test_guided_diffusers_are_the_plain_loop(name: str) -> None:
    agent, context, noise = drawn(name)
    recipe = cases.RECIPES[name]
    x = noise.initial.clone()
    x[:, 0, :S] = context
    for t, now, before in powers(Schedule.cosine(recipe.steps)):
        told = torch.full((len(x),), t)
        epsilon = agent.networks["plan"](x, told)
        point = x.clone().requires_grad_(True)
        share = math.sqrt(now / before) * (1.0 - before) / (1.0 - now)
        value = torch.tensor(share, dtype=torch.float32) * agent.networks["value"](point, told)
        (gradient,) = torch.autograd.grad(value.sum(), point)
        # A scale of 2 is a power of two: the order of the product does not matter.
        epsilon = epsilon - 2.0 * torch.tensor(math.sqrt(1.0 - now)).float() * gradient
        x = ddim_step(x, epsilon, now, before)
        x[:, 0, :S] = context
    policy = recipe.policy(agent)
    plans = policy.planner.sample(context, noise=noise)
    assert torch.equal(plans, x)
    torch.testing.assert_close(policy.act(plans, context), x[:, :1, S:].clamp(-1.0, 1.0))
    unguided = policy.planner.denoiser.denoiser(x, told, context)  # type: ignore[attr-defined]
    assert not torch.equal(unguided, policy.planner.denoiser(x, told + 1, context))


def test_guidance_moves_the_mean_of_a_ddpm_step_by_its_posterior_variance() -> None:
    agent, context, noise = drawn("diffuser")
    recipe, x = cases.RECIPES["diffuser"], noise.initial.double()
    networks = agent.networks.double()
    denoiser = recipe.policy(agent).planner.denoiser
    sampler = muninn.ddpm(Schedule.cosine(recipe.steps))
    for step, (t, now, before) in enumerate(powers(Schedule.cosine(recipe.steps))):
        told = torch.full((len(x),), t)
        plain, guided = networks["plan"](x, told), denoiser(x, told, context)
        point = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(networks["value"](point, told).sum(), point)
        still = torch.zeros_like(x)
        moved = sampler.step(x, guided, step, still) - sampler.step(x, plain, step, still)
        variance = (1.0 - now / before) * (1.0 - before) / (1.0 - now)
        # The weight is stored in float32, and multiplied by 1 / signal and the like.
        torch.testing.assert_close(moved, 2.0 * variance * gradient, rtol=1e-5, atol=1e-6)


def test_decision_diffuser_is_the_plain_loop() -> None:
    agent, context, noise = drawn("decision-diffuser")
    recipe = cases.RECIPES["decision-diffuser"]
    network, frames = agent.networks["plan"], torch.ones(3, recipe.horizon, 1)
    x = noise.initial.clone()
    x[:, 0] = context
    for t, now, before in powers(Schedule.cosine(recipe.steps)):
        told = torch.full((len(x),), t)
        wanted = network(torch.cat([x, 1.5 * frames, frames], dim=-1), told)[..., :S]
        plain = network(torch.cat([x, 0.0 * frames, 0.0 * frames], dim=-1), told)[..., :S]
        x = ddim_step(x, plain + 1.6 * (wanted - plain), now, before)
        x[:, 0] = context
    policy = recipe.policy(agent)
    assert torch.equal(policy.planner.sample(context, noise=noise), x)
    action = agent.networks["inverse"](torch.cat([x[:, :1], x[:, 1:2]], dim=-1))
    torch.testing.assert_close(policy.act(x, context), action.clamp(-1.0, 1.0))


def test_diffusion_ql_is_the_plain_loop_with_the_critics_choice() -> None:
    agent, context, noise = drawn("diffusion-ql")
    recipe = cases.RECIPES["diffusion-ql"]
    x = noise.initial.clone()
    for step, (t, now, before) in enumerate(powers(vp_schedule(recipe.steps))):
        told = torch.full((len(x),), t)
        epsilon = agent.networks["actor"](x, told, context)
        alpha = now / before
        a, s = math.sqrt(now), math.sqrt(1.0 - now)
        clean = (x * (1.0 / a)).add(epsilon, alpha=-s / a).clamp(-1.0, 1.0)
        x = (clean * (math.sqrt(before) * (1.0 - alpha) / (1.0 - now))).add(
            x, alpha=math.sqrt(alpha) * (1.0 - before) / (1.0 - now)
        )
        if t:
            variance = (1.0 - before) / (1.0 - now) * (1.0 - alpha)
            x = x.add(noise.steps[step], alpha=math.sqrt(variance))
    policy = recipe.policy(agent)
    plans = policy.planner.sample(context, noise=noise)
    assert torch.equal(plans, x)
    told_all = context[:, None].expand(-1, 12, -1)
    first, second = agent.networks["critic"](told_all, x)
    best = torch.minimum(first, second).argmax(dim=1)
    executed = policy.act(plans, context)[:, 0]
    torch.testing.assert_close(executed, x[torch.arange(3), best])
    assert len(set(best.tolist())) > 1, "the choice should depend on the candidates"


@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_a_batch_is_the_loop_over_its_rows(name: str) -> None:
    policy = cases.policy(name)
    _, context, noise = drawn(name)
    whole = policy.planner.sample(context, noise=noise)
    for row in range(3):
        place = slice(row, row + 1)
        alone = policy.planner.sample(context[place], noise=noise.select(place))
        torch.testing.assert_close(whole[place], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_the_metric_is_the_executed_action_and_sees_nothing_else(name: str) -> None:
    policy = cases.policy(name)
    _, context, noise = drawn(name)
    plans, metric = policy.planner.sample(context, noise=noise), policy.metric()
    assert measure(metric, plans, plans, context).tolist() == [0.0] * 3
    other = plans + 0.2 * torch.randn(plans.shape, generator=torch.Generator().manual_seed(2))
    apart = (policy.act(plans, context) - policy.act(other, context)).abs().amax(dim=(1, 2))
    assert measure(metric, plans, other, context) == pytest.approx(apart.tolist())
    view = view_of(metric)
    if view is not None:
        same = other.clone()
        seen = view(same)
        seen.copy_(view(plans))  # a view of the same memory: only what the metric looks at
        assert measure(metric, plans, same, context).tolist() == [0.0] * 3


@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_the_library_certifies_them(name: str) -> None:
    policy = cases.policy(name)
    steps = len(policy.planner.sampler)
    generator = torch.Generator().manual_seed(3)
    contexts = torch.rand(120, S, generator=generator) - 0.5
    some = Static((0, steps // 2, steps - 1))
    family = Family.of(Forecast("sample", order=0), (Everywhere(), some), "static")
    certificate = muninn.calibrate(
        policy.planner, contexts, tolerance=5.0, risk=0.2, family=family, metric=policy.metric(),
        progress=False,
    )  # fmt: skip
    fast = muninn.cache(policy.planner, certificate)
    plans, record = fast(contexts[:4])
    assert plans.shape == (4, *policy.planner.shape)
    assert record.evaluations.tolist() == [3] * 4
    assert certificate.metric == "executed_action"


def test_a_critic_that_is_not_finite_chooses_nothing() -> None:
    agent = cases.agent("diffusion-ql")
    next(agent.networks["critic"].parameters()).fill_(math.nan)
    policy = cases.RECIPES["diffusion-ql"].policy(agent)
    with pytest.raises(InputError, match=r"critic returned a value that is not finite.*train it"):
        policy.act(torch.zeros(1, 12, 2), torch.zeros(1, S))


def test_a_value_network_that_is_not_finite_is_no_plan_to_calibrate_against() -> None:
    agent = cases.agent("diffuser")
    next(agent.networks["value"].parameters()).fill_(math.nan)
    policy = cases.RECIPES["diffuser"].policy(agent)
    plans = policy.planner.sample(torch.zeros(1, S))
    with pytest.raises(InputError, match="an action that is not finite"):
        policy.act(plans, torch.zeros(1, S))
    with pytest.raises(DenoiserError, match="not finite"):
        muninn.calibrate(policy.planner, torch.rand(120, S), tolerance=1.0, progress=False)


def test_the_schedule_of_diffusion_ql_reaches_noise() -> None:
    # Closed form: the rates sum up to 0.1 + (10 - 0.1) / 2 for any number of steps.
    for steps in (5, 10, 25):
        assert vp_schedule(steps).alpha_bar[-1] == pytest.approx(math.exp(-5.05), rel=1e-9)
