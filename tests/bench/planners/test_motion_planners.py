"""Guided motion planners: each is the plain loop, bit for bit, and pays only where it is guided."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import motion_cases as cases
import muninn
from graph_cases import stand_in_for_cuda
from muninn.engines.choose import runtime_for
from muninn.engines.rounds import RoundRuntime
from muninn.engines.runtime import Runtime
from muninn.errors import CertificateError, DenoiserError, InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.forecast import Forecast
from muninn.programs.methods import few_steps
from muninn.programs.plan import Adaptive, Everywhere, Family, Program, Static
from muninn.programs.spacing import sampler_states
from muninn_bench.networks.agent import Agent
from muninn_bench.planners import cost_guidance
from muninn_bench.planners.cost_guidance import CostGuidance, Descent, Push
from muninn_bench.planners.edmp import EDMP
from muninn_bench.planners.motion_cost import MotionCost, between, hinge
from muninn_bench.planners.motion_prior import MotionPrior, inpaint_poses
from muninn_bench.planners.mpd import MPD

NAMES = list(cases.PLANNERS)
GUIDED = 6
"""Steps of the last quarter of 25."""


def drawn(name: str, calls: int = 3) -> tuple[Planner, Tensor, Noise]:
    planner = cases.planner(name)
    return planner, cases.problems(calls), planner.draw_noise(seeds=range(calls))


def powers() -> list[tuple[int, float, float]]:
    """Timesteps, noisiest first, with the signal power there and after the step."""
    table = Schedule.cosine(25).alpha_bar.tolist()
    return [(t, table[t], table[t - 1] if t else 1.0) for t in reversed(range(len(table)))]


def epsilon_of(agent: Agent, x: Tensor, t: int, context: Tensor) -> Tensor:
    """The network's prediction, call by call and row by row put together."""
    told = context[:, None, :14].expand(-1, x.shape[1], -1).reshape(-1, 14)
    flat = x.reshape(-1, *x.shape[2:])
    found: Tensor = agent.networks["plan"](flat, torch.full((len(flat),), t), told)
    return found.reshape(x.shape)


def written(x: Tensor, context: Tensor) -> Tensor:
    x[:, :, 0], x[:, :, -1] = context[:, None, :7], context[:, None, 7:14]
    return x


def pushed(
    mean: Tensor, context: Tensor, size: Tensor, margin: Tensor, smoothness: Tensor, steps: int
) -> Tensor:
    """The displacement of ``steps`` gradient steps; size and so on are (rows,)."""
    cost = MotionCost(cases.Point(), cases.coordinates(), tuple(smoothness.tolist()))
    boxes = context[:, 14:].reshape(len(context), -1, 6)
    first = written(mean.clone(), context)
    point = first
    for _ in range(steps):
        point = point.detach().requires_grad_(True)
        total = cost(point, boxes, margin.expand(len(point), -1)).sum()
        (gradient,) = torch.autograd.grad(total, point)
        gradient[:, :, 0] = gradient[:, :, -1] = 0.0
        longest = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).clamp_min(1.0)
        point = point - size[:, None, None] * gradient / longest
    return point.detach() - first


def numbers(*values: float) -> list[Tensor]:
    return [torch.tensor(value).float() for value in values]


def guided_epsilon(
    epsilon: Tensor, x: Tensor, now: float, clean: Tensor, after: float, moved: Tensor
) -> Tensor:
    """The noise of which the step lands where the guided mean is; ``after`` weighs a clean plan."""
    from_x, from_noise, weight = numbers(
        1.0 / math.sqrt(now), -math.sqrt(1.0 - now) / math.sqrt(now), after
    )
    raw = x * from_x + epsilon * from_noise
    return epsilon + (clean + moved / weight - raw) / from_noise


def clean_plan(x: Tensor, epsilon: Tensor, now: float) -> Tensor:
    a, s = math.sqrt(now), math.sqrt(1.0 - now)
    return (x * (1.0 / a)).add(epsilon, alpha=-s / a).clamp(-1.0, 1.0)


@pytest.mark.parametrize("kind", ["mean", "clean"])
def test_mpd_is_the_plain_guided_loop(kind: Any) -> None:
    _, context, noise = drawn("mpd")
    planner = MPD(cases.PRIOR, rows=4, pushed=kind).planner(cases.agent(), cases.Point())
    agent, x, rows = cases.agent(), written(noise.initial.clone(), context), 4
    for t, now, before in powers():
        epsilon = epsilon_of(agent, x, t, context)
        a, s, ab, sb = (math.sqrt(v) for v in (now, 1.0 - now, before, 1.0 - before))
        if t < GUIDED:
            after, carried = (ab - sb * a / s, sb / s) if kind == "mean" else (1.0, 0.0)
            from_x, from_noise, from_clean, from_state = numbers(1.0 / a, -s / a, after, carried)
            clean = (x * from_x + epsilon * from_noise).clamp(-1.0, 1.0)
            mean = clean * from_clean + x * from_state
            size, margin = torch.full((rows,), 0.05), torch.full((rows,), 0.05)
            moved = pushed(mean, context, size, margin, torch.full((rows,), 0.5), 5)
            epsilon = guided_epsilon(epsilon, x, now, clean, after, moved)
        x = (clean_plan(x, epsilon, now) * (ab - sb * a / s)).add(x, alpha=sb / s)
        x = written(x, context)
    assert torch.equal(planner.sample(context, noise=noise), x)


def test_edmp_is_the_plain_guided_loop() -> None:
    planner, context, noise = drawn("edmp")
    agent, x = cases.agent(), written(noise.initial.clone(), context)
    # Nine chains: each of three costs (margin, smoothness) with each of three peaks.
    pairs = [(0.03, 0.1), (0.06, 0.1), (0.06, 0.3)]
    chains = [(margin, smooth, peak) for margin, smooth in pairs for peak in (0.05, 0.1, 0.2)]
    for step, (t, now, before) in enumerate(powers()):
        epsilon = epsilon_of(agent, x, t, context)
        alpha = now / before
        from_clean = math.sqrt(before) * (1.0 - alpha) / (1.0 - now)
        from_state = math.sqrt(alpha) * (1.0 - before) / (1.0 - now)
        if t < GUIDED:
            a, s = math.sqrt(now), math.sqrt(1.0 - now)
            from_x, from_noise, weight, carried = numbers(1.0 / a, -s / a, from_clean, from_state)
            clean = (x * from_x + epsilon * from_noise).clamp(-1.0, 1.0)
            mean = clean * weight + x * carried
            left = (1.0 + t) / GUIDED
            size = torch.tensor([peak * left for _, _, peak in chains])
            margin = torch.tensor([whole * (1.0 - 0.5 * left) for whole, _, _ in chains])
            smoothness = torch.tensor([weight for _, weight, _ in chains])
            moved = pushed(mean, context, size, margin, smoothness, 5)
            epsilon = guided_epsilon(epsilon, x, now, clean, from_clean, moved)
        x = (clean_plan(x, epsilon, now) * from_clean).add(x, alpha=from_state)
        if t:
            variance = (1.0 - before) / (1.0 - now) * (1.0 - alpha)
            x = x.add(noise.steps[step], alpha=math.sqrt(variance))
        x = written(x, context)
    assert planner.shape == (9, 16, 7)
    assert torch.equal(planner.sample(context, noise=noise), x)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_lands_where_the_gradient_steps_led(name: str) -> None:
    planner, context, noise = drawn(name)
    denoiser: Any = planner.denoiser
    x, step = 0.3 * inpaint_poses(noise.initial.clone(), context), 20
    told = planner.timestep(step, len(x))
    still = torch.zeros_like(x)
    plain = denoiser.denoiser(x, told, context)
    mean = planner.sampler.step(x, plain, step, still)
    moved, guided = denoiser.objective(mean, told, context)
    assert guided.all() and moved.abs().amax(dim=(2, 3)).min() > 1e-3
    landed = planner.sampler.step(x, denoiser(x, told, context), step, still)
    # Where the clean plan that this takes is within the bound on clean plans.
    levels = planner.sampler.affine(step, "epsilon")
    wanted = (x * levels[0] + plain * levels[1]).clamp(-1.0, 1.0) + moved / levels[2]
    inside = wanted.abs() < 1.0
    inner = inside[:, :, 1:-1]
    assert inner.float().mean() > 0.5
    torch.testing.assert_close(
        landed[:, :, 1:-1][inner], (mean + moved)[:, :, 1:-1][inner], atol=1e-5, rtol=0.0
    )


@pytest.mark.parametrize("name", NAMES)
def test_few_plans_are_pushed_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, context, noise = drawn(name)
    denoiser: Any = planner.denoiser
    objective, seen = denoiser.objective, list[int]()
    told, plans = planner.timestep(20, len(context)), 0.3 * noise.initial
    whole, _ = objective(plans, told, context)
    real = objective.cost.forward
    monkeypatch.setattr(
        objective.cost, "forward", lambda *given: seen.append(len(given[0])) or real(*given)
    )
    rows = planner.shape[0]
    monkeypatch.setattr(cost_guidance, "TOGETHER", {"cpu": 2 * rows + 1})
    parts, guided = objective(plans, told, context)
    assert max(seen) == 2 < len(context) and guided.shape[:2] == plans.shape[:2]
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_the_loop_over_its_calls(name: str) -> None:
    planner, context, noise = drawn(name)
    whole = planner.sample(context, noise=noise)
    for call in range(3):
        place = slice(call, call + 1)
        alone = planner.sample(context[place], noise=noise.select(place))
        torch.testing.assert_close(whole[place], alone, rtol=1e-4, atol=1e-4)


def test_each_call_is_guided_at_its_own_timestep() -> None:
    planner, context, noise = drawn("mpd")
    x = inpaint_poses(noise.initial.clone(), context)
    times = torch.tensor([2, 20, 5])
    together = planner.denoiser(x, times, context)
    for call in range(3):
        alone = planner.denoiser(
            x[call : call + 1], times[call : call + 1], context[call : call + 1]
        )
        torch.testing.assert_close(together[call : call + 1], alone, rtol=1e-4, atol=1e-4)
    denoiser: Any = planner.denoiser
    plain = denoiser.denoiser(x, times, context)
    assert torch.equal(together[1], plain[1]), "beyond the quarter nothing is changed"
    assert not torch.equal(together[0], plain[0])


# -- what is paid ------------------------------------------------------------------------------


def gradients(planner: Planner) -> int:
    """Cost evaluations so far."""
    denoiser: Any = planner.denoiser
    calls: int = denoiser.objective.cost.clearance.calls
    return calls


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_taken_at_evaluations_in_the_last_quarter_alone(name: str) -> None:
    planner, context, noise = drawn(name)
    seen: list[int] = []
    planner.sample(context, noise=noise, visit=lambda step, x: seen.append(gradients(planner)))
    assert seen[: 25 - GUIDED + 1] == [0] * (25 - GUIDED + 1)
    assert gradients(planner) == 5 * GUIDED
    for anchors, evaluated in (((0, 3, 9, 18), 0), ((0, 5, 12, 19, 22, 24), 3)):
        anchors = anchors if anchors[-1] == 24 else (*anchors, 24)
        program = Program(Forecast("sample", 1), Static(anchors))
        before = gradients(planner)
        _, record = Runtime(planner, program)(context, noise=noise)
        guided = sum(step >= 25 - GUIDED for step in anchors)
        assert record.evaluations.tolist() == [len(anchors)] * 3
        assert gradients(planner) - before == 5 * guided
        assert guided == max(evaluated, 1)


def test_a_fixed_plan_in_a_graph_leaves_gradients_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_cuda(monkeypatch)
    original, asked = CostGuidance._guides, list[bool]()

    def unread(self: CostGuidance, timestep: Tensor) -> bool:
        asked.append(original(self, torch.full_like(timestep, -1)))  # as if it could not be read
        return asked[-1]

    monkeypatch.setattr(CostGuidance, "_guides", unread)
    planner, context, noise = drawn("mpd")
    graph = replace(planner, engine="graph")
    anchors = (0, 6, 12, 18, 21, 24)
    states = sampler_states(planner.sampler)
    table = few_steps(planner.sampler, [states[step] for step in anchors])
    for program in (table, Program(Forecast("sample", 1), Static(anchors))):
        runtime = runtime_for(graph, program)
        runtime(context[:1], noise=noise.select(slice(1)))  # captures
        before = gradients(planner)
        runtime(context[:1], noise=noise.select(slice(1)))
        assert gradients(planner) - before == 5 * 2
        assert asked[-6:] == [False] * 4 + [True] * 2


def test_size_zero_changes_nothing_where_a_graph_cannot_branch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, context, noise = drawn("mpd")
    expected = planner.sample(context, noise=noise)
    before = gradients(planner)
    monkeypatch.setattr(CostGuidance, "_guides", lambda self, timestep: True)
    assert torch.equal(planner.sample(context, noise=noise), expected)
    assert gradients(planner) - before == 5 * 25


def test_guidance_works_in_inference_mode() -> None:
    planner, context, noise = drawn("mpd")
    expected = planner.sample(context, noise=noise)
    with torch.inference_mode():
        found = planner.sample(context.clone(), noise=noise.select(torch.arange(3)))
    assert torch.equal(found.clone(), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("plan", [Static((0, 2, 6, 11, 17, 20, 22, 24)), Adaptive(0.02, dense=3)])
def test_engines_agree(name: str, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_cuda(monkeypatch)
    planner, context, noise = drawn(name)
    program = Program(Forecast("sample", 1), plan)
    expected, reference = Runtime(planner, program)(context, noise=noise)
    graph = replace(planner, engine="graph")
    for runtime in (RoundRuntime(planner, program), runtime_for(graph, program)):
        found, record = runtime(context, noise=noise)
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert record.fallback == (None,) * 3
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=0.0)


# -- certificates ------------------------------------------------------------------------------


def calibrated(planner: Planner) -> muninn.Certificate:
    contexts = cases.problems(120, seed=1)
    family = Family.of(
        Forecast("sample", order=0), (Everywhere(), Static((0, 4, 8, 12, 16, 20, 24))), "static"
    )
    return muninn.calibrate(
        planner, contexts, tolerance=50.0, risk=0.2, family=family, batch_size=16, progress=False
    )


def test_a_certificate_is_of_one_cost_and_one_guidance() -> None:
    arm, agent = cases.Point(), cases.agent()
    recipe = cases.PLANNERS["mpd"]
    planner = recipe.planner(agent, arm)
    certificate = calibrated(planner)
    plans, record = muninn.cache(planner, certificate)(cases.problems(2))
    assert plans.shape == (2, 4, 16, 7) and record.evaluations.tolist() == [7, 7]
    guidance = certificate.identity["model"]["guidance"]
    assert guidance == {
        "guidance": "cost", "gradient_steps": 5, "pushed": "mean", "fineness": 2, "denoiser": None
    }  # fmt: skip
    other: dict[str, Planner] = {
        "size": MPD(cases.PRIOR, rows=4, size=0.04).planner(agent, arm),
        "margin": MPD(cases.PRIOR, rows=4, margin=0.06).planner(agent, arm),
        "smoothness": MPD(cases.PRIOR, rows=4, smoothness=0.4).planner(agent, arm),
        "steps": MPD(cases.PRIOR, rows=4, gradient_steps=4).planner(agent, arm),
        "quarter": MPD(cases.PRIOR, rows=4, guided=0.5).planner(agent, arm),
        "from": MPD(cases.PRIOR, rows=4, pushed="clean").planner(agent, arm),
        "arm": recipe.planner(agent, cases.Point(0.12)),
        "links": recipe.planner(agent, cases.Chain()),
    }
    for name, changed in other.items():
        with pytest.raises(CertificateError):
            muninn.cache(changed, certificate)
            pytest.fail(f"another {name} was not noticed")


def test_a_cost_that_is_not_finite_is_no_plan_to_calibrate_against() -> None:
    planner = cases.planner("mpd", cases.Point(math.nan))
    plans = planner.sample(cases.problems(2))
    assert plans.isnan().any(), "guidance passes on what it cannot use"
    with pytest.raises(DenoiserError, match="not finite"):
        calibrated(planner)


# -- the cost ----------------------------------------------------------------------------------


def cost_of(arm: nn.Module, fineness: int = 2, **changes: Any) -> MotionCost:
    return MotionCost(arm, cases.coordinates(), (0.2,), fineness, **changes)


@pytest.mark.parametrize("arm", [cases.Point(), cases.Chain()])
def test_the_gradient_is_that_of_finite_differences(arm: nn.Module) -> None:
    context = cases.problems(1).double()
    boxes = context[:, 14:].reshape(1, -1, 6)
    share = torch.linspace(0.0, 1.0, 8, dtype=torch.float64)[:, None]
    plan = (context[:, :7] * (1.0 - share) + context[:, 7:14] * share)[None, None] * 1.1
    plan = plan + 0.05 * torch.randn(plan.shape, generator=torch.Generator().manual_seed(0))
    margin = torch.full((1, 1), 0.4, dtype=torch.float64)
    cost = cost_of(arm).double()
    assert cost(plan, boxes, margin).item() > 0.1
    assert torch.autograd.gradcheck(
        lambda point: cost(point, boxes, margin), plan.requires_grad_(True), atol=1e-5
    )


def test_nothing_slips_between_two_frames() -> None:
    # A thin box halfway between two frames, which are both clear of it.
    plan = torch.zeros(1, 1, 2, 7)
    plan[..., 0, 0], plan[..., 1, 0] = -0.3, 0.3
    boxes = torch.tensor([[[0.0, 0.0, 0.0, 0.02, 1.0, 1.0]]])
    margin = torch.full((1, 1), 0.05)
    coarse, fine = (cost_of(cases.Point(), each)(plan, boxes, margin) for each in (1, 2))
    assert coarse.item() == 0.0
    assert fine.item() == pytest.approx(0.5 * (0.12 + 0.5 * 0.05))


def test_the_slope_of_the_hinge_has_no_jump() -> None:
    distance = torch.linspace(-0.2, 0.4, 601, dtype=torch.float64, requires_grad=True)
    hinge(distance, torch.tensor(0.1, dtype=torch.float64)).sum().backward()
    slope = distance.grad
    assert slope is not None
    assert slope[0] == -1.0 and slope[-1] == 0.0
    assert slope.diff().abs().max() < 0.0101


def test_poses_between_frames_are_on_the_line() -> None:
    plans = torch.randn(2, 3, 5, 7)
    found = between(plans, 4)
    assert found.shape == (2, 3, 17, 7)
    assert torch.equal(found[:, :, ::4], plans)
    torch.testing.assert_close(found[:, :, 2::4], (plans[:, :, 1:] + plans[:, :, :-1]) / 2)


# -- bad input ---------------------------------------------------------------------------------


def test_weights_and_tables_that_make_no_sense_are_refused() -> None:
    for weights, fineness in (((-0.1,), 2), ((math.nan,), 2), ((0.1,), 0)):
        with pytest.raises(InputError, match=r"finite and at least 0.*one pose a frame"):
            MotionCost(cases.Point(), cases.coordinates(), weights, fineness)
    ones = np.ones((25, 2))
    for sizes, margins, steps in (
        (-ones, ones, 1), (ones * math.nan, ones, 1), (ones, 0.0 * ones, 1),
        (ones, np.ones((25, 3)), 1), (ones, ones, 0),
    ):  # fmt: skip
        with pytest.raises(InputError, match="margins finite and above 0"):
            Push(sizes, margins, steps)
    with pytest.raises(InputError, match="1 steps from 'noise'"):
        Push(ones, ones, 1, "noise")  # type: ignore[arg-type]
    cost = MotionCost(cases.Point(), cases.coordinates(), (0.5, 0.5))
    with pytest.raises(InputError, match=r"0.5 overshoots.*at or below 0.0625"):
        Descent(cost, Push(ones, ones, 1))
    with pytest.raises(InputError, match="weights for 2 rows, the push sizes for 3"):
        Descent(cost, Push(np.ones((25, 3)), np.ones((25, 3)), 1))


def test_a_gradient_step_below_the_limit_lowers_the_roughness() -> None:
    alternating = torch.full((1, 1, 16, 7), 0.4)
    alternating[:, :, ::2] *= -1.0
    far = torch.tensor([[[9.0, 9.0, 9.0, 0.1, 0.1, 0.1]]])
    cost = MotionCost(cases.Point(), cases.coordinates(), (1.0,), limits=0.0)
    plan = alternating.requires_grad_(True)
    before = cost(plan, far, torch.full((1, 1), 0.1))
    (gradient,) = torch.autograd.grad(before.sum(), plan)
    for size, lower in ((0.06, True), (0.08, False)):
        after = cost(plan - size * gradient, far, torch.full((1, 1), 0.1))
        assert bool(after < before) is lower


def test_a_sampler_that_the_table_does_not_fit_is_refused() -> None:
    ones = np.full((25, 4), 0.01)
    descent = Descent(
        MotionCost(cases.Point(), cases.coordinates(), (0.1,) * 4), Push(ones, ones, 1)
    )
    network = cases.planner("mpd").denoiser
    schedule = Schedule.cosine(25)
    for sampler in (
        ddim(schedule, 5, kind="epsilon", clip=1.0),
        ddim(schedule, kind="epsilon"),
        ddim(schedule, kind="sample", clip=1.0),
        ddim(schedule, kind="epsilon", clip=1.0, keep_epsilon=True),
    ):
        with pytest.raises(InputError, match="visit all 25 timesteps of its table"):
            CostGuidance(network, descent, sampler)


@pytest.mark.parametrize("width", [14, 13, 22])
def test_a_context_without_whole_boxes_is_refused(width: int) -> None:
    with pytest.raises(InputError, match=rf"14 numbers for start and goal and 6 .*got {width}"):
        cases.planner("mpd").sample(torch.zeros(1, width))


def test_a_network_is_told_what_it_takes_and_nothing_else() -> None:
    told = MotionPrior(horizon=16, widths=(8, 16), blocks=1, time_width=16).networks()["plan"]
    x, t = torch.zeros(1, 16, 7), torch.zeros(1, dtype=torch.long)
    with pytest.raises(InputError, match="must be told what a plan is for"):
        told(x, t)
    with pytest.raises(InputError, match="takes a timestep and nothing else"):
        cases.blind()(x, t, torch.zeros(1, 14))
    assert EDMP(cases.PRIOR).chains[1] == ((0.03, 0.1), 0.1)
