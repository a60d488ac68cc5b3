"""Fitting where there is little to learn or much to mislead: harmless, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import mixture_planner
from fitting_cases import CALLS, DDIM, SHAPE, based, error, fitter, fresh, gaussian
from muninn.engines.choose import runtime_for
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.programs.fitting import overwritten


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


def test_a_condition_that_moves_entries_is_refused() -> None:
    planner = replace(gaussian(), condition=lambda x, context: x.clamp(-1.0, 1.0))
    assert overwritten(planner, None) is None
    with pytest.raises(InputError, match="condition changes entries that it does not overwrite"):
        fitter(planner)
