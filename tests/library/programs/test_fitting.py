"""Fitting a table: exact where it can be, harmless where there is nothing to learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import Counting, join, levels, mixture_planner, polynomial_planner
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs import fitting
from muninn.programs.anchors import full_chain
from muninn.programs.fitting import Fitter, overwritten
from muninn.programs.methods import few_steps, forecast
from muninn.programs.spacing import sampler_states, spread_steps
from muninn.programs.table import Table

SHAPE, STEPS, CALLS = (4, 2), 20, 64
DDIM = ddim(Schedule.cosine(STEPS), kind="sample")


@dataclass(frozen=True, eq=False)
class GaussianDenoiser:
    """Exact prediction for x0 ~ N(mean, deviation^2), entries apart: affine in the state."""

    sampler: Sampler
    mean: Tensor
    deviation: Tensor

    def __call__(self, x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        signal, noise = levels(self.sampler, timestep, x)
        gain = signal * self.deviation**2 / (signal**2 * self.deviation**2 + noise**2)
        sample = self.mean + gain * (x.double() - signal * self.mean)
        epsilon = (x.double() - signal * sample) / noise
        sign = self.sampler.velocity_sign
        return join(self.sampler.kind, sample, epsilon, signal, noise, sign).to(x.dtype)


def gaussian(sampler: Sampler = DDIM, deviation: tuple[float, ...] = (0.4,)) -> Planner:
    mean = torch.tensor([0.3, -0.8], dtype=torch.float64)
    denoiser = GaussianDenoiser(sampler, mean, torch.tensor(deviation, dtype=torch.float64))
    return Planner(denoiser, sampler, SHAPE)


def fitter(
    planner: Planner, context: Any = None, calls: int = CALLS, fit: int | None = None, **more: Any
) -> Fitter:
    noise = planner.draw_noise(seeds=range(calls))
    chain = more.pop("chain", None)
    if chain is None:
        chain = full_chain(planner, context, noise, 1, 32).states
    return Fitter(
        planner, context, noise, chain, round(0.6 * calls) if fit is None else fit, **more
    )


def based(planner: Planner, count: int, build: Callable[..., Table] = few_steps) -> Table:
    states = sampler_states(planner.sampler)
    return build(planner.sampler, [states[step] for step in spread_steps(len(states), count)])


def fresh(planner: Planner, count: int = 200) -> Noise:
    return planner.draw_noise(seeds=range(10_000, 10_000 + count))


def error(planner: Planner, table: Table, context: Any = None) -> float:
    """Root-mean-square deviation on calls that nobody fitted on."""
    noise = fresh(planner)
    full = planner.sample(context, noise=noise)
    got, record = runtime_for(planner, table)(context, noise=noise)
    assert record.fallbacks == 0
    return float(rms_step(full, got).square().mean().sqrt())


# -- exact cases -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [
        DDIM,
        ddim(Schedule.cosine(STEPS), kind="epsilon"),
        ddim(Schedule.linear(STEPS, end=0.3), kind="v"),
        euler(STEPS),
    ],
    ids=["sample", "epsilon", "v", "flow"],
)
@pytest.mark.parametrize("count", [2, 4])
def test_a_linear_denoiser_is_reproduced_up_to_rounding(sampler: Sampler, count: int) -> None:
    planner = replace(gaussian(sampler), dtype=torch.float64)
    base = based(planner, count)
    table, _ = fitter(planner)(base)
    assert error(planner, base) > 1e-2
    assert error(planner, table) < 1e-5
    assert table.states == base.states and table.method == f"fitted, from {base.method}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_the_base_is_exact_the_correction_is_zero(dtype: torch.dtype) -> None:
    planner = polynomial_planner(DDIM, 1, SHAPE, quantity="sample", dtype=dtype)
    states = [sampler_states(DDIM)[step] for step in (0, 1, 7, 13, 19)]
    base = forecast(DDIM, states, "sample", 1, look_back=True)
    assert error(planner, base) < 1e-5
    table, _ = fitter(planner)(base)
    np.testing.assert_array_equal(table.array, base.array)


@pytest.mark.parametrize("sampler", [DDIM, ddpm(Schedule.cosine(STEPS), kind="sample")])
def test_the_trajectories_it_tells_are_those_of_the_runtime(sampler: Sampler) -> None:
    planner = mixture_planner(sampler, SHAPE)
    own = fitter(planner)
    table, reached = own(based(planner, 5))
    got, _ = runtime_for(planner, table)(noise=own.noise)
    torch.testing.assert_close(reached, got, rtol=1e-4, atol=1e-4)


def test_channels_get_weights_of_their_own_only_where_held_out_calls_say_so() -> None:
    alike, apart = gaussian(deviation=(0.4,)), gaussian(deviation=(0.05, 1.5))
    assert fitter(alike)(based(alike, 3))[0].array.shape[0] == 1
    table, _ = fitter(apart)(based(apart, 3))
    assert table.array.shape[0] == SHAPE[-1]
    assert error(apart, table) < 1e-4 < 1e-2 < error(apart, based(apart, 3))


# -- what it costs, and that it is a function of its calls ----------------------------------------


def test_remembered_anchors_are_not_evaluated_again_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = mixture_planner(DDIM, SHAPE)
    counting = Counting(planner.denoiser)
    planner = replace(planner, denoiser=counting)
    own, first = fitter(planner), based(planner, 5)
    states = sampler_states(DDIM)
    # The same first two anchors lead to the same third.
    other = few_steps(DDIM, [*first.states[:4], states[-2]])
    own(first)
    counting.rows.clear()
    shared, reached = own(other)
    assert len(counting.rows) == 2  # the last two: the row that leads to a moved anchor is another
    again, same = own(other)
    assert len(counting.rows) == 2 and again == shared and torch.equal(reached, same)
    alone, apart = fitter(planner)(other)
    assert alone == shared and torch.equal(apart, reached)
    monkeypatch.setattr(fitting, "REMEMBERED", 1)
    forgetful = fitter(planner)
    forgetful(first)
    assert forgetful(other)[0] == shared


# -- robust -------------------------------------------------------------------------------------


def test_calls_that_took_another_route_do_not_move_the_fit() -> None:
    planner = gaussian()
    clean = fitter(planner)
    expected, _ = clean(based(planner, 3))
    chain = clean.chain.clone()
    chain[5:, [3, 40]] += 5.0  # one that is fitted on, one that judges
    moved, _ = fitter(planner, chain=chain)(based(planner, 3))
    np.testing.assert_allclose(moved.array, expected.array, atol=1e-4)
    assert error(planner, moved) < 1e-4


def test_a_call_that_is_not_finite_is_left_out() -> None:
    planner = gaussian()
    chain = fitter(planner).chain.clone()
    chain[7, 2] = torch.nan
    chain[-1, 50] = torch.inf
    table, _ = fitter(planner, chain=chain)(based(planner, 3))
    assert error(planner, table) < 1e-5


def test_a_network_that_fails_off_the_route_leaves_the_other_calls_fitted() -> None:
    planner = gaussian()

    def failing(x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        said = planner.denoiser(x, timestep, context)
        said[x[:, 0, 0] > 1.5] = torch.nan
        return said

    chain = fitter(planner).chain
    table, reached = fitter(replace(planner, denoiser=failing), chain=chain)(based(planner, 3))
    bad = ~torch.isfinite(reached).flatten(1).all(dim=1)
    assert 0 < bad.sum() < CALLS // 2
    assert error(planner, table) < 1e-4


def test_too_few_finite_calls_are_refused() -> None:
    planner = gaussian()
    with pytest.raises(InputError, match=r"7 finite calls are too few to fit.*at least 8"):
        fitter(planner, calls=20, fit=7)
    chain = fitter(planner, calls=20).chain.clone()
    chain[3, :6] = torch.nan
    with pytest.raises(InputError, match="6 finite calls are too few"):
        fitter(planner, calls=20, chain=chain)


def constant(x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
    return torch.full_like(x, 0.7)


@pytest.mark.parametrize("calls", [8, 64])
def test_collinear_features_and_few_calls_give_finite_tables_near_their_base(calls: int) -> None:
    planner = Planner(constant, DDIM, (1, 1))
    base = based(planner, 12)  # 13 features, up to 8 numbers to fit them to
    table, _ = fitter(planner, calls=calls, fit=8)(base)
    assert np.isfinite(table.array).all() and np.abs(table.array).max() < 3.0
    assert error(planner, table) < 1e-5  # fewer steps are exact already


def test_fewer_calls_than_coefficients_do_no_harm() -> None:
    planner = mixture_planner(DDIM, (1, 1), components=2)
    base = based(planner, 12)
    table, _ = fitter(planner, calls=20, fit=8)(base)
    assert np.isfinite(table.array).all()
    assert error(planner, table) < 2.0 * error(planner, base)


# -- what the metric looks at ------------------------------------------------------------------


def test_the_last_row_is_fitted_to_what_the_metric_looks_at() -> None:
    planner = mixture_planner(DDIM, SHAPE, seed=3)
    base = based(planner, 3)
    first = lambda plans: 2.0 * plans[:, :1] + 1.0  # noqa: E731
    seen, _ = fitter(planner, calls=256, view=first)(base)
    whole, _ = fitter(planner, calls=256)(base)
    noise = fresh(planner)
    full = planner.sample(noise=noise)
    gaps = [
        float(rms_step(first(full), first(runtime_for(planner, table)(noise=noise)[0])).median())
        for table in (seen, whole)
    ]
    assert gaps[0] < gaps[1]
    np.testing.assert_array_equal(seen.array[:, :-1], whole.array[:, :-1])


@pytest.mark.parametrize(
    "view",
    [
        lambda plans: plans[:, :0],
        lambda plans: torch.zeros_like(plans),
        lambda plans: plans[:, 0, 0],
    ],
    ids=["empty", "zero", "one number"],
)
def test_a_view_may_be_small(view: Any) -> None:
    planner = gaussian()
    base = based(planner, 3)
    table, _ = fitter(planner, view=view)(base)
    if view(torch.ones(1, *SHAPE)).sum() == 0:  # nothing to learn from: the base's own last row
        np.testing.assert_array_equal(table.array[:, -1], base.array[:, -1])
    else:
        assert error(planner, table) > 0.0
        noise = fresh(planner)
        got, _ = runtime_for(planner, table)(noise=noise)
        gap = view(got) - view(planner.sample(noise=noise))
        assert gap.abs().max() < 1e-4


# -- noise of the sampler, and conditions --------------------------------------------------------


def arrival(planner: Planner, table: Table) -> list[float]:
    """Mean distance of the states that a table evaluates from those of full compute."""
    seen: dict[float, list[Tensor]] = {}

    def watching(x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        seen.setdefault(float(timestep[0]), []).append(x.clone())
        return planner.denoiser(x, timestep, context)

    watched, noise = replace(planner, denoiser=watching), fresh(planner)
    watched.sample(noise=noise)
    runtime_for(watched, table)(noise=noise)
    return [float(rms_step(*seen[state.timestep]).mean()) for state in table.states]


def test_the_noise_of_a_stochastic_sampler_gets_a_weight_of_its_own_and_it_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = gaussian(ddpm(Schedule.cosine(STEPS), kind="sample"))
    base = based(planner, 5)
    free, _ = fitter(planner, calls=256)(base)
    assert base.noise == (1.0,) * 5
    assert all(weight > 1.005 for weight in free.noise[1:-1])  # what fell moves the clean sample
    solve = fitting._solve

    def held(gram: Any, calls: Any, ridge: float) -> Any:
        """The weight of the noise stays what it was."""
        size = gram.shape[-1] - 1
        keep = [*range(size - 1), size]
        delta = solve(gram[:, :, keep][:, :, :, keep], calls, ridge)
        return np.concatenate([delta, np.zeros((len(delta), 1))], axis=1)

    monkeypatch.setattr(fitting, "_solve", held)
    fixed, _ = fitter(planner, calls=256)(base)
    assert fixed.noise == base.noise
    apart = list(zip(*(arrival(planner, table) for table in (free, fixed, base)), strict=True))
    for own, other, untouched in apart[2:]:
        assert own < 0.9 * other < untouched, apart
    assert error(planner, free) <= 1.001 * error(planner, fixed) < error(planner, base)


def pinned(x: Tensor, context: Tensor) -> Tensor:
    x[:, 0] = 3.0 * context
    return x


def test_entries_that_a_condition_overwrites_are_left_out_of_the_fit() -> None:
    context = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    planner = replace(gaussian(), condition=pinned)
    mask = overwritten(planner, context)
    assert mask is not None and mask[0].all() and not mask[1:].any()
    table, reached = fitter(planner, context[:CALLS])(based(planner, 3))
    assert torch.equal(reached[:, 0], 3.0 * context[:CALLS])
    assert error(planner, table, context) < 1e-5
    # The overwritten entries follow no line: a fit that saw them would be pulled away.
    without, _ = fitter(gaussian())(based(planner, 3))
    np.testing.assert_allclose(table.array, without.array, atol=1e-4)


def test_a_condition_that_moves_entries_is_refused() -> None:
    planner = replace(gaussian(), condition=lambda x, context: x.clamp(-1.0, 1.0))
    assert overwritten(planner, None) is None
    with pytest.raises(InputError, match="condition changes entries that it does not overwrite"):
        fitter(planner)
