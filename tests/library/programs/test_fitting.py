"""Fitting a table: exact where it can be, closer where it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import Counting, mixture_planner, polynomial_planner
from fitting_cases import CALLS, DDIM, SHAPE, STEPS, arrival, based, error, fitter, fresh, gaussian
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs import fitting
from muninn.programs.caches import forecast
from muninn.programs.fitting import overwritten
from muninn.programs.methods import few_steps
from muninn.programs.spacing import sampler_states

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
    ("view", "channels"),
    [
        (lambda plans: plans[:, :2], 2),
        (lambda plans: 3.0 * plans[:, 1] - 1.0, 2),
        (lambda plans: plans.diff(dim=1), 2),
        (lambda plans: plans.flip(-1), 1),  # as many channels, but not the same
        (lambda plans: plans.flatten(1), 1),
        (lambda plans: plans[..., 0], 1),
    ],
)
def test_a_view_that_keeps_channels_lets_them_have_weights_of_their_own(
    view: Any, channels: int
) -> None:
    planner = gaussian(deviation=(0.05, 1.5))
    own = fitter(planner, calls=128, view=view)
    table, _ = own(few_steps(DDIM, sampler_states(DDIM)[:2]))
    last = table.array[:, -1]
    assert len(np.unique(last.round(6), axis=0)) == channels
    if channels == SHAPE[-1]:
        noise = fresh(planner)
        got, _ = runtime_for(planner, table)(noise=noise)
        assert float((view(got) - view(planner.sample(noise=noise))).abs().max()) < 1e-3


# -- noise of the sampler, and conditions --------------------------------------------------------


def test_the_noise_of_a_stochastic_sampler_gets_a_weight_of_its_own_and_it_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = gaussian(ddpm(Schedule.cosine(STEPS), kind="sample"))
    base = based(planner, 5)
    free, _ = fitter(planner, calls=256)(base)
    assert base.noise == (1.0,) * 5
    assert all(weight > 1.005 for weight in free.noise[1:-1])  # what fell moves the clean sample
    solve = fitting.solve

    def held(gram: Any, calls: Any, ridge: float) -> Any:
        """The weight of the noise stays what it was."""
        size = gram.shape[-1] - 1
        keep = [*range(size - 1), size]
        delta = solve(gram[:, :, keep][:, :, :, keep], calls, ridge)
        return np.concatenate([delta, np.zeros((len(delta), 1))], axis=1)

    monkeypatch.setattr(fitting, "solve", held)
    fixed, _ = fitter(planner, calls=256)(base)
    assert fixed.noise == base.noise
    apart = list(zip(*(arrival(planner, table) for table in (free, fixed, base)), strict=True))
    for own, other, untouched in apart[2:]:
        assert own < 0.9 * other < untouched, apart
    assert error(planner, free) <= 1.01 * error(planner, fixed) < error(planner, base)


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
    executed, _ = fitter(planner, context[:CALLS], view=lambda plans: plans[:, :2])(
        based(planner, 3)
    )
    assert error(planner, executed, context) < 1e-5
    # The overwritten entries follow no line: a fit that saw them would be pulled away.
    without, _ = fitter(gaussian())(based(planner, 3))
    np.testing.assert_allclose(table.array, without.array, atol=1e-4)
