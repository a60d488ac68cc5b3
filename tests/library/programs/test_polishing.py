"""Polishing a table: the result comes closer, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import Counting, mixture_planner
from fitting_cases import CALLS, DDIM, SHAPE, STEPS, based, error, fitter, gaussian
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm
from muninn.programs import polishing
from muninn.programs.caches import forecast
from muninn.programs.polishing import polished
from muninn.programs.spacing import sampler_states
from muninn.programs.table import Table

RAW = ddim(Schedule.cosine(STEPS), kind="epsilon", clip=1.0, keep_epsilon=True)
DDPM = ddpm(Schedule.cosine(STEPS), kind="sample")


def pinned(x: Tensor, context: Any) -> Tensor:
    x[:, 0] = 0.5
    return x


def changed(table: Table, row: int, by: float) -> Table:
    weights = table.array
    weights[:, row, : 2 + row] += by
    return replace(table, weights=weights.tolist())


def missed(planner: Any, table: Table) -> float:
    """Median deviation on fresh calls."""
    noise = planner.draw_noise(seeds=range(20_000, 20_400))
    got, _ = runtime_for(planner, table)(noise=noise)
    return float(rms_step(planner.sample(noise=noise), got).median())


# -- it does what it says ------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [DDIM, RAW, DDPM], ids=["ddim", "raw epsilon", "ddpm"])
@pytest.mark.parametrize("condition", [None, pinned], ids=["free", "inpainted"])
def test_the_trajectories_it_tells_are_those_of_the_runtime(
    sampler: Sampler, condition: Any
) -> None:
    made = gaussian if sampler.stochastic else mixture_planner
    planner = replace(made(sampler), condition=condition)
    own = fitter(planner, calls=256)
    base = based(planner, 5)
    if sampler is RAW:
        states = sampler_states(sampler)
        base = forecast(sampler, [states[at] for at in (0, 4, 9, 14, 19)], "epsilon", 1)
    worse = changed(own(base)[0], 2, 0.02)
    table, reached = polished(own, worse)
    assert table.method == f"fitted, from {base.method}, polished"
    assert table.states == base.states
    assert (table.noise != worse.noise) == sampler.stochastic
    got, record = runtime_for(planner, table)(noise=own.noise)
    assert record.fallbacks == 0
    torch.testing.assert_close(reached, got, rtol=1e-4, atol=1e-4)
    again, same = polished(own, worse)
    assert again == table and torch.equal(same, reached)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_weight_that_was_moved_is_moved_back(row: int) -> None:
    planner = replace(gaussian(), dtype=torch.float64)
    own = fitter(planner)
    exact, _ = own(based(planner, 3))
    assert error(planner, exact) < 1e-5
    worse = changed(exact, row, 0.02)
    table, _ = polished(own, worse)
    assert error(planner, table) < 0.05 * error(planner, worse)


@pytest.mark.parametrize("seed", range(4))
def test_results_come_closer_on_fresh_calls(seed: int) -> None:
    planner = mixture_planner(DDIM, SHAPE, seed=seed)
    own = fitter(planner, calls=512)
    table, _ = own(based(planner, 4))
    assert missed(planner, polished(own, table)[0]) < missed(planner, table)


def test_what_the_metric_does_not_see_is_not_polished() -> None:
    planner = gaussian()
    first = lambda plans: plans[:, :1]  # noqa: E731
    noticed, unnoticed = fitter(planner, view=first), fitter(planner, view=lambda x: 0.0 * x)
    worse = changed(noticed(based(planner, 3))[0], 2, 0.05)
    assert polished(unnoticed, worse)[0] == worse
    assert error(planner, polished(noticed, worse)[0]) < 0.1 * error(planner, worse)


# -- what it costs, and what it survives ----------------------------------------------------------


def test_it_evaluates_as_often_as_its_weights_ask_and_no_gradient_is_taken() -> None:
    planner = mixture_planner(DDIM, SHAPE)
    counting = Counting(planner.denoiser)
    own = fitter(replace(planner, denoiser=counting))
    table, _ = own(based(planner, 4))
    counting.rows.clear()
    polished(own, table)
    # Rows of 2, 3 and 4 weights are followed by 3, 2 and 1 evaluations, the last row by none.
    assert sum(counting.rows) == CALLS * (2 * 3 + 3 * 2 + 4 * 1 + 4 * (2 + 4))


def test_room_for_fewer_calls_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = replace(mixture_planner(DDIM, SHAPE), dtype=torch.float64)
    own = fitter(planner)
    table, _ = own(based(planner, 4))
    whole, _ = polished(own, table)
    monkeypatch.setattr(polishing, "MOST_NUMBERS", 7.0 * (1 + 14) * np.prod(SHAPE))
    parts, _ = polished(own, table)
    assert whole != table
    np.testing.assert_allclose(parts.array, whole.array, rtol=1e-6, atol=1e-9)


def test_a_call_that_is_not_finite_and_one_on_another_route_are_left_out() -> None:
    planner = replace(gaussian(), dtype=torch.float64)
    own = fitter(planner)
    worse = changed(own(based(planner, 3))[0], 1, 0.02)
    chain = own.chain.clone()
    chain[-1, [3, 50]] = torch.nan
    chain[5:, [7, 41]] += 5.0
    table, _ = polished(fitter(planner, chain=chain), worse)
    assert error(planner, table) < 0.05 * error(planner, worse)


@pytest.mark.parametrize("finite", [0, 5])
def test_a_table_whose_results_are_hardly_ever_finite_stays_as_it_is(finite: int) -> None:
    planner = gaussian()
    table, _ = fitter(planner)(based(planner, 3))

    def failing(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return torch.where(
            context[:, :, None] < finite, planner.denoiser(x, timestep, None), torch.nan
        )

    context = torch.arange(CALLS, dtype=torch.float32)[:, None]
    own = fitter(planner)
    own = replace(own, planner=replace(planner, denoiser=failing), context=context)
    same, reached = polished(own, table)
    assert same == table and len(reached) == CALLS


@pytest.mark.parametrize("fit", [CALLS, 8])
def test_without_judges_or_with_few_calls_it_is_harmless(fit: int) -> None:
    planner = mixture_planner(DDIM, SHAPE)
    own = fitter(planner, fit=fit)
    table, _ = own(based(planner, 5))
    better, reached = polished(own, table)
    assert torch.isfinite(reached).all()
    if fit == CALLS:
        assert better == table
    assert missed(planner, better) < 1.2 * missed(planner, table)


def test_in_half_precision_a_table_stays_as_it_is() -> None:
    planner = mixture_planner(DDIM, SHAPE, dtype=torch.float16)
    own = fitter(planner)
    table, reached = own(based(planner, 4))
    same, told = polished(own, table)
    assert same == table
    torch.testing.assert_close(told, reached, rtol=1e-2, atol=1e-2)
