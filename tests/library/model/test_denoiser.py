"""Guidance gives the closed-form prediction in every parameterisation; weights have identity."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analytic import Counting, MixtureDenoiser, join, mixture_denoiser, split
from muninn.context import Context
from muninn.engines.choose import runtime_for
from muninn.engines.rounds import RoundRuntime
from muninn.engines.runtime import Runtime
from muninn.errors import DenoiserError, InputError
from muninn.model.denoiser import (
    ClassifierFreeGuidance,
    GradientGuidance,
    at_timestep,
    check_prediction,
    fingerprint,
    known_timestep,
)
from muninn.model.planner import Planner
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import Forecast
from muninn.programs.methods import few_steps
from muninn.programs.plan import Program, Static
from muninn.programs.spacing import sampler_states

SHAPE = (3, 2)


def every_sampler() -> list[Sampler]:
    """Diffusion in three kinds, flow in three kinds and two directions; no pure-noise step."""
    schedule = Schedule.cosine(50)
    diffusion: list[Kind] = ["epsilon", "sample", "v"]
    flow: list[Kind] = ["epsilon", "sample", "velocity"]
    down, up = np.linspace(0.97, 0.0, 9).tolist(), np.linspace(0.03, 1.0, 9).tolist()
    return [
        *(ddim(schedule, 8, kind=kind) for kind in diffusion),
        *(euler(down, kind=kind) for kind in flow),
        *(euler(up, kind=kind, time_scale=1000.0) for kind in flow),
        euler([0.6, 0.0]),
        euler([0.4, 1.0]),
    ]


def told(sampler: Sampler, index: int, rows: int) -> Tensor:
    return torch.full((rows,), float(sampler.steps[index].timestep), dtype=torch.float64)


def names(sampler: Sampler) -> str:
    return f"{sampler.name}-{sampler.kind}-{sampler.velocity_sign:+g}-{len(sampler)}"


# -- the closed forms themselves ---------------------------------------------------------------


@pytest.mark.parametrize("sampler", every_sampler(), ids=names)
def test_the_mixture_obeys_tweedie_in_every_parameterisation(sampler: Sampler) -> None:
    mixture = mixture_denoiser(sampler, SHAPE)
    for index, step in enumerate(sampler.steps):
        x = torch.randn(4, *SHAPE, dtype=torch.float64, requires_grad=True)
        time = told(sampler, index, 4)
        (score,) = torch.autograd.grad(mixture.log_density(x, time).sum(), x)
        prediction = mixture(x.detach(), time)
        levels = (step.signal, step.noise, sampler.velocity_sign)
        sample, epsilon = split(sampler.kind, x.detach(), prediction, *levels)
        torch.testing.assert_close(epsilon, -step.noise * score, rtol=0.0, atol=1e-9)
        torch.testing.assert_close(
            step.signal * sample + step.noise * epsilon, x.detach(), rtol=0.0, atol=1e-9
        )


# -- gradient guidance ---------------------------------------------------------------------------


def gaussian(sampler: Sampler, mean: Tensor, deviation: float) -> MixtureDenoiser:
    one = torch.ones(1, dtype=torch.float64)
    return MixtureDenoiser(sampler, mean[None], deviation * one, one)


@pytest.mark.parametrize("sampler", every_sampler(), ids=names)
def test_guiding_with_a_gaussian_likelihood_predicts_the_posterior(sampler: Sampler) -> None:
    generator = torch.Generator().manual_seed(0)
    mean, observed = torch.randn(2, *SHAPE, generator=generator, dtype=torch.float64)
    deviation, error = 0.7, 0.4
    prior = gaussian(sampler, mean, deviation)
    gain = deviation**2 / (deviation**2 + error**2)
    posterior = gaussian(sampler, mean + gain * (observed - mean), deviation * (1 - gain) ** 0.5)

    def likelihood(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        """log p(observed | x_t) of observed = x0 + error * N(0, I), a Gaussian in x_t."""
        index = int(
            (timestep[0] - torch.tensor([s.timestep for s in sampler.steps])).abs().argmin()
        )
        signal, noise = sampler.steps[index].signal, sampler.steps[index].noise
        total = signal**2 * deviation**2 + noise**2
        clean = mean + signal * deviation**2 / total * (x - signal * mean)
        variance = deviation**2 * noise**2 / total + error**2
        return -0.5 * ((observed - clean) ** 2 / variance).flatten(1).sum(dim=1)

    guided = GradientGuidance(prior, likelihood, 1.0, sampler)
    x = torch.randn(5, *SHAPE, generator=generator, dtype=torch.float64)
    for index, step in enumerate(sampler.steps):
        time = told(sampler, index, 5)
        expected = posterior(x, time)
        assert float((expected - prior(x, time)).abs().max()) > 1e-3  # guidance does something
        torch.testing.assert_close(
            guided(x, time, None), expected, rtol=0.0, atol=1e-10 / step.signal
        )


@pytest.mark.parametrize("sampler", every_sampler(), ids=names)
def test_gradient_guidance_moves_the_score_by_scale_times_the_gradient(sampler: Sampler) -> None:
    mixture = mixture_denoiser(sampler, SHAPE)
    guided = GradientGuidance(mixture, lambda x, t, c: (3.0 * x).flatten(1).sum(1), 0.5, sampler)
    x = torch.randn(2, *SHAPE, dtype=torch.float64)
    for index, step in enumerate(sampler.steps):
        time = told(sampler, index, 2)
        levels = (step.signal, step.noise, sampler.velocity_sign)
        _, before = split(sampler.kind, x, mixture(x, time), *levels)
        _, after = split(sampler.kind, x, guided(x, time, None), *levels)
        moved = -(after - before) / step.noise
        torch.testing.assert_close(
            moved, torch.full_like(x, 1.5), rtol=0.0, atol=1e-9 / (step.signal * step.noise)
        )


def test_each_row_is_guided_at_its_own_timestep() -> None:
    sampler = ddim(Schedule.cosine(50), 8, kind="sample")
    mixture = mixture_denoiser(sampler, SHAPE)
    guided = GradientGuidance(mixture, lambda x, t, c: x.flatten(1).sum(1), 1.0, sampler)
    x = torch.randn(2, *SHAPE, dtype=torch.float64)
    times = torch.cat([told(sampler, 2, 1), told(sampler, 6, 1)])
    together = guided(x, times, None)
    for row in (0, 1):
        alone = guided(x[row : row + 1], times[row : row + 1], None)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0.0, atol=1e-12)


def test_guidance_leaves_pure_noise_alone_where_the_state_says_nothing() -> None:
    sampler = euler(4)
    assert sampler.steps[0].signal == 0.0
    mixture = mixture_denoiser(sampler, SHAPE)
    guided = GradientGuidance(mixture, lambda x, t, c: x.flatten(1).sum(1), 5.0, sampler)
    x = torch.randn(2, *SHAPE, dtype=torch.float64)
    assert torch.equal(guided(x, told(sampler, 0, 2), None), mixture(x, told(sampler, 0, 2)))
    assert not torch.equal(guided(x, told(sampler, 1, 2), None), mixture(x, told(sampler, 1, 2)))


def test_gradient_guidance_keeps_no_graph_and_works_without_gradients() -> None:
    sampler = ddim(Schedule.cosine(50), 8)
    guided = GradientGuidance(
        mixture_denoiser(sampler, SHAPE), lambda x, t, c: -(x**2).flatten(1).sum(1), 1.0, sampler
    )
    x = torch.randn(2, *SHAPE)
    with torch.no_grad():
        prediction = guided(x, told(sampler, 3, 2), None)
    assert not prediction.requires_grad and not x.requires_grad
    assert prediction.dtype == x.dtype


# -- classifier-free guidance ----------------------------------------------------------------


def test_classifier_free_guidance_is_affine_between_its_two_forwards() -> None:
    sampler = ddim(Schedule.cosine(50), 8, kind="sample")
    mixture = mixture_denoiser(sampler, SHAPE)
    x, shift = torch.randn(4, *SHAPE, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    time = told(sampler, 4, 4)
    with_context, without = mixture(x, time, shift), mixture(x, time, None)
    assert not torch.allclose(with_context, without)
    for scale in (0.0, 1.0, 2.5):
        guided = ClassifierFreeGuidance(mixture, lambda context: None, scale)
        expected = (1 - scale) * without + scale * with_context
        torch.testing.assert_close(guided(x, time, shift), expected, rtol=0.0, atol=1e-12)


# -- guidance of a prediction that is there already ----------------------------------------------


@pytest.mark.parametrize("kind", ["classifier-free", "gradient"])
def test_guiding_a_prediction_is_calling_the_guidance_less_that_forward(kind: str) -> None:
    sampler = ddim(Schedule.cosine(50), 8, kind="sample")
    counting = Counting(mixture_denoiser(sampler, SHAPE))
    guided = (
        ClassifierFreeGuidance(counting, lambda context: 0.0 * context, 2.5)
        if kind == "classifier-free"
        else GradientGuidance(counting, lambda x, t, c: (x**3).flatten(1).sum(1), 0.5, sampler)
    )
    x, context, time = torch.randn(4, *SHAPE), torch.randn(4, 2), told(sampler, 4, 4)
    expected = guided(x, time, context)
    own = counting.inner(x, time, context)
    forwards = len(counting.rows)
    assert torch.equal(guided.guide(own, x, time, context), expected)
    assert len(counting.rows) - forwards == forwards - 1 == (kind == "classifier-free")
    moved = guided.guide(own + 1.0, x, time, context) - expected
    slope = 2.5 if kind == "classifier-free" else 1.0
    torch.testing.assert_close(moved, torch.full_like(x, slope), rtol=0.0, atol=1e-4)


# -- guidance inside a run ---------------------------------------------------------------------


@pytest.mark.parametrize("make", [ddpm, ddim], ids=["ddpm", "ddim"])
def test_forecast_steps_skip_both_forwards_of_classifier_free_guidance(make: Any) -> None:
    sampler = make(Schedule.cosine(50), 20, kind="sample")
    counting = Counting(mixture_denoiser(sampler, SHAPE))
    guided = ClassifierFreeGuidance(counting, lambda context: torch.zeros_like(context), 1.5)
    planner = Planner(guided, sampler, SHAPE)
    program = Program(Forecast("sample", 1), Static((0, 1, 4, 9, 19)))
    context = torch.randn(3, 2)
    _, record = Runtime(planner, program)(context, noise=planner.draw_noise(seeds=[0, 1, 2]))
    assert record.evaluations.tolist() == [5, 5, 5]
    assert len(counting.rows) == 10
    visited = [float(sampler.steps[anchor].timestep) for anchor in (0, 1, 4, 9, 19)]
    assert counting.timesteps == [time for time in visited for _ in range(2)]


def test_the_gradient_is_computed_only_where_the_denoiser_is_evaluated() -> None:
    sampler = ddim(Schedule.cosine(50), 20, kind="sample")
    counting = Counting(mixture_denoiser(sampler, SHAPE))
    gradients = []

    def objective(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        x.register_hook(lambda gradient: gradients.append(float(timestep[0])))
        return -(x**2).flatten(1).sum(dim=1)

    planner = Planner(GradientGuidance(counting, objective, 0.1, sampler), sampler, SHAPE)
    program = Program(Forecast("sample", 1), Static((0, 1, 4, 9, 19)))
    Runtime(planner, program)(noise=planner.draw_noise(seeds=[0, 1]))
    visited = [float(sampler.steps[anchor].timestep) for anchor in (0, 1, 4, 9, 19)]
    assert gradients == visited and counting.timesteps == visited
    planner.sample(noise=planner.draw_noise(seeds=[0, 1]))
    assert len(gradients) == 5 + 20


def test_guided_full_plans_equal_the_guided_plain_sampler() -> None:
    sampler = ddpm(Schedule.cosine(50), 20, kind="v")
    inner = ClassifierFreeGuidance(mixture_denoiser(sampler, SHAPE), lambda c: None, 2.0)
    guided = GradientGuidance(inner, lambda x, t, c: -(x**2).flatten(1).sum(1), 0.3, sampler)
    planner, context = Planner(guided, sampler, SHAPE), torch.randn(3, 2)
    noise = planner.draw_noise(seeds=[4, 5, 6])
    planned, _ = Runtime(planner, Program.full("v"))(context, noise=noise)
    assert torch.equal(planned, planner.sample(context, noise=noise))


# -- what a sampler can use --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "dtype", "message"),
    [
        ((torch.zeros(2, 3),), None, "returned tuple, not a tensor"),
        (torch.zeros(2, 4), None, r"returned shape \(2, 4\) for a state of shape \(2, 3\)"),
        (torch.zeros(1, 3), None, r"returned shape \(1, 3\)"),
        (torch.zeros(2, 3, device="meta"), None, "tensor on meta for a state on cpu"),
        (torch.zeros(2, 3, dtype=torch.int64), None, "returned torch.int64"),
        (
            torch.zeros(2, 3, dtype=torch.float64),
            torch.float32,
            "returned torch.float64 after torch.float32 earlier",
        ),
    ],
)
def test_a_prediction_that_does_not_fit_is_refused_with_its_reason(
    prediction: Any, dtype: torch.dtype | None, message: str
) -> None:
    with pytest.raises(DenoiserError, match=message):
        check_prediction(prediction, torch.zeros(2, 3), dtype)


def test_a_prediction_that_fits_comes_back_as_it_is() -> None:
    prediction = torch.full((2, 3), float("nan"), dtype=torch.float16)
    assert check_prediction(prediction, torch.zeros(2, 3), torch.float16) is prediction


# -- identity ----------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        out: Tensor = self.layer(x)
        return out

    def predict(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return self.forward(x, timestep, context)


def holders(network: Network) -> list[Any]:
    """The ways in which user code hands a network over."""
    sampler = ddim(Schedule.cosine(10), 5)
    return [
        network,
        network.predict,
        lambda x, t, c: network(x, t, c),
        functools.partial(Network.forward, network),
        ClassifierFreeGuidance(network, lambda c: None, 2.0),
        GradientGuidance(network, lambda x, t, c: x.flatten(1).sum(1), 1.0, sampler),
        ClassifierFreeGuidance(lambda x, t, c: network(x, t, c), lambda c: None, 2.0),
    ]


def test_the_fingerprint_follows_the_weights_through_every_way_of_holding_them() -> None:
    first, twin, other = Network(0), Network(0), Network(1)
    for mine, same, different in zip(*map(holders, (first, twin, other)), strict=True):
        assert fingerprint(mine)["weights"] == fingerprint(same)["weights"], mine
        assert fingerprint(mine)["weights"] != fingerprint(different)["weights"], mine
        assert fingerprint(mine)["parameters"] >= sum(p.numel() for p in first.parameters())


class Constant(nn.Module):
    """Weights that are the same everywhere, so that their digest is known."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        self.layer.bias.data = torch.tensor([5.0, 6.0])
        self.rate, self.mode, self.hidden = 0.5, "plain", [nn.Linear(2, 2)]
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("table", torch.randn(3), persistent=False)
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def test_fingerprints_are_what_they_were_when_certificates_were_made() -> None:
    """Another digest of the same network would have every certificate refused."""
    network, scale, array = Constant(), torch.arange(3.0), np.arange(4)

    class Holder:
        def __init__(self) -> None:
            self.parts = {"network": (network, scale), "array": [array, 0.25], "count": 3}

        def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
            return network(x, timestep, context)

    holder = Holder()
    holders = {
        "network": network,
        "method": network.forward,
        "closure": lambda x, t, c: network(x * scale, t, c) * float(array[0]),
        "partial": functools.partial(Constant.forward, network, context=scale),
        "holder": holder,
        "free": ClassifierFreeGuidance(holder, lambda c: None, 2.0),
    }
    found = {name: fingerprint(each, older=True)["weights"] for name, each in holders.items()}
    assert found == KNOWN


KNOWN = {
    "network": "d7ffdaf80db08656ddbaa22bbd8ba023",
    "method": "d7ffdaf80db08656ddbaa22bbd8ba023",
    "closure": "80ad1c52712bbf3bd3a042f006954a42",
    "partial": "4a4f17fdfac2d7453f0bf78f34bb2ded",
    "holder": "eee103047aeff2a7d71e64fbf344c3aa",
    "free": "5334416223e8f9743a44345f874a1710",
}

GLOBAL_NETWORK = Network(0)


def through_a_global(x: Tensor, timestep: Tensor, context: Context) -> Tensor:
    return GLOBAL_NETWORK(x, timestep, context)


def test_the_fingerprint_sees_networks_held_as_globals_and_inside_holders() -> None:
    policy = SimpleNamespace(model=GLOBAL_NETWORK)

    def through_a_holder(x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        return policy.model(x, timestep, context)

    for denoiser in (through_a_global, through_a_holder):
        before = fingerprint(denoiser)["weights"]
        with torch.no_grad():
            GLOBAL_NETWORK.layer.bias[0] += 1e-3
        assert before is not None
        assert fingerprint(denoiser)["weights"] != before


def test_a_denoiser_without_weights_says_so() -> None:
    assert fingerprint(lambda x, timestep, context: x)["weights"] is None


def test_one_changed_weight_changes_the_fingerprint() -> None:
    network = Network()
    before = fingerprint(network)
    assert before == fingerprint(network)
    with torch.no_grad():
        network.layer.bias[0] += 1e-6
    assert fingerprint(network)["weights"] != before["weights"]


def test_the_fingerprint_tells_guidance_apart_at_every_depth() -> None:
    network, sampler = Network(), ddim(Schedule.cosine(10), 5)

    def guided(outer: float, inner: float) -> dict[str, Any]:
        free = ClassifierFreeGuidance(network, lambda c: None, inner)
        return fingerprint(GradientGuidance(free, lambda x, t, c: x.sum(), outer, sampler))

    prints = [guided(1.0, 1.0), guided(2.0, 1.0), guided(1.0, 2.0), fingerprint(network)]
    assert guided(1.0, 1.0) == prints[0]
    for first, second in itertools.combinations(prints, 2):
        assert first != second


def test_something_that_cannot_be_called_is_no_denoiser() -> None:
    with pytest.raises(InputError, match="must be callable, got int"):
        fingerprint(3)  # type: ignore[arg-type]


def test_join_and_split_of_the_closed_forms_invert_each_other() -> None:
    sample, epsilon = torch.randn(2, 3, 2, dtype=torch.float64)
    for kind, noise in itertools.product(["epsilon", "sample", "v"], [0.3, 0.9]):
        signal = (1 - noise**2) ** 0.5
        prediction = join(kind, sample, epsilon, signal, noise)  # type: ignore[arg-type]
        x = signal * sample + noise * epsilon
        found = split(kind, x, prediction, signal, noise)  # type: ignore[arg-type]
        torch.testing.assert_close(torch.stack(found), torch.stack([sample, epsilon]))
    for sign, noise in itertools.product([1.0, -1.0], [0.3, 0.9]):
        x = (1 - noise) * sample + noise * epsilon
        prediction = join("velocity", sample, epsilon, 1 - noise, noise, sign)
        found = split("velocity", x, prediction, 1 - noise, noise, sign)
        torch.testing.assert_close(torch.stack(found), torch.stack([sample, epsilon]))


# -- what the host knows -------------------------------------------------------------------------


def test_the_host_knows_the_timestep_of_plain_sampling_and_fixed_plans() -> None:
    sampler = ddim(Schedule.cosine(50), 8, kind="sample")
    mixture, seen = mixture_denoiser(sampler, SHAPE), list[tuple[float, float | None]]()

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        seen.append((float(timestep[0]), known_timestep()))
        return mixture(x, timestep, context)

    planner = Planner(denoise, sampler, SHAPE)
    planner.sample()
    program = Program(Forecast("sample", 1), Static((0, 3, 7)))
    table = few_steps(sampler, sampler_states(sampler)[::2])
    for runtime in (Runtime(planner, program), runtime_for(planner, table)):
        runtime(noise=planner.draw_noise(2))
    assert len(seen) == 8 + 3 + 4 and all(told == known for told, known in seen)
    seen.clear()
    RoundRuntime(planner, program)(noise=planner.draw_noise(2))
    assert seen and all(known is None for _, known in seen), "each row is at its own"
    assert known_timestep() is None


def test_a_denoiser_that_fails_leaves_no_timestep_behind() -> None:
    with pytest.raises(ZeroDivisionError), at_timestep(3.0):
        assert known_timestep() == 3.0
        with at_timestep(None):
            assert known_timestep() is None
        raise ZeroDivisionError
    assert known_timestep() is None
