"""Gates: what a budget spends, and the thresholds beside it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paper_cases as cases
from muninn.errors import InputError
from muninn.paper.gates import Accumulated, Budget, Threshold, paper_budget

EVERYTHING = torch.ones(3, dtype=torch.bool)


@given(
    st.lists(st.lists(st.floats(0.0, 2.0), min_size=3, max_size=3), min_size=15, max_size=15),
    st.floats(1e-4, 3.0),
    st.floats(1e-3, 2.0),
)
@settings(max_examples=60)
def test_budget_is_never_negative_and_is_what_was_spent(
    scores: list[list[float]], tolerance: float, level: float
) -> None:
    gate = Budget(cases.constant_envelope(level), tolerance, (0.7,) * cases.STEPS)
    state = gate.start(3, torch.device("cpu"))
    spent = torch.zeros(3, dtype=torch.float64)
    for step, row in zip(gate.envelope.eligible, scores, strict=False):
        before = state.clone()  # a gate that wrote into its state would compare it with itself
        reuse, cost, state = gate.decide(step, torch.tensor(row), EVERYTHING, state)
        assert (state >= 0.0).all()
        assert ((cost > 0.0) <= reuse).all()
        assert (state[~reuse] == before[~reuse]).all()
        spent += cost.double()
    assert torch.allclose(spent + state.double(), torch.full((3,), tolerance).double(), atol=1e-5)


def test_budget_reuses_exactly_as_often_as_it_can_pay() -> None:
    gate = Budget(cases.constant_envelope(0.25), 1.0, (1.0,) * cases.STEPS)
    state = gate.start(3, torch.device("cpu"))
    reused = []
    for step in gate.envelope.eligible:
        reuse, _, state = gate.decide(step, torch.full((3,), 0.5), EVERYTHING, state)
        reused.append(bool(reuse[0]))
    assert reused == [True] * 4 + [False] * (len(reused) - 4)  # greedy, as published


def test_budget_asks_for_an_evaluation_where_nothing_is_calibrated_or_allowed() -> None:
    gate = Budget(cases.constant_envelope(0.0), 1.0, (1.0,) * cases.STEPS)
    state = gate.start(3, torch.device("cpu"))
    outside, _, _ = gate.decide(0, torch.zeros(3), EVERYTHING, state)
    allowed = torch.tensor([True, False, True])
    inside, _, _ = gate.decide(5, torch.zeros(3), allowed, state)
    assert not outside.any()
    assert inside.tolist() == allowed.tolist()


def test_nan_score_is_never_reused() -> None:
    gate = Budget(cases.constant_envelope(0.1), 1.0, (1.0,) * cases.STEPS)
    state = gate.start(3, torch.device("cpu"))
    score = torch.tensor([math.nan, 0.1, math.nan])
    reuse, _, left = gate.decide(5, score, EVERYTHING, state)
    assert reuse.tolist() == [False, True, False]
    assert torch.isfinite(left).all()


def test_units_differ_by_the_factors_of_horizon_and_width() -> None:
    planner, bound = cases.planner(), cases.constant_envelope(0.1)
    path = planner.sampler.sensitivity("epsilon")
    horizon, width = cases.SHAPE
    for units, factor in (
        ("algorithm", horizon**-0.5),
        ("appendix", 1.0),
        ("mended", width**0.5),
    ):
        weights = paper_budget(planner, bound, 0.1, units=units).weights  # type: ignore[arg-type]
        assert weights == pytest.approx((factor * path).tolist())
    flat = paper_budget(planner, bound, 0.1, units="appendix", sensitivity=False)
    assert flat.weights == (1.0,) * cases.STEPS


def test_mended_units_bound_what_one_reuse_does() -> None:
    """One held prediction with label u moves the trajectory by exactly sqrt(d) L_t u."""
    planner = cases.planner(clip=None)
    planner = type(planner)(planner.denoiser, planner.sampler, planner.shape)
    bound = cases.constant_envelope(1.0)
    weights = paper_budget(planner, bound, 1.0, units="mended").weights
    error = torch.randn(1, *cases.SHAPE, generator=torch.Generator().manual_seed(0))
    label = float(error.norm()) / math.sqrt(error.numel())
    for step in (2, 9, 17):
        x = torch.zeros(1, *cases.SHAPE)
        for later in range(step, cases.STEPS):
            push = error if later == step else torch.zeros_like(error)
            x = planner.sampler.step(x, push, later, None, "epsilon")
        moved = float(x.norm()) / math.sqrt(cases.SHAPE[0])
        assert moved == pytest.approx(weights[step] * label, rel=1e-4)


def test_threshold_compares_the_last_change_and_accumulation_their_sum() -> None:
    scores = [torch.full((3,), value) for value in (0.2, 0.2, 0.2, 0.6, 0.1)]

    def decisions(gate: Threshold | Accumulated) -> list[bool]:
        state = gate.start(3, torch.device("cpu"))
        found = []
        for step, score in enumerate(scores, start=1):
            reuse, cost, state = gate.decide(step, score, EVERYTHING, state)
            assert not cost.any()
            found.append(bool(reuse[0]))
        return found

    assert decisions(Threshold(0.5)) == [True, True, True, False, True]
    # 0.2, 0.4, then 0.6 passes 0.5 and starts again at zero; 0.6 passes alone; 0.1.
    assert decisions(Accumulated(0.5)) == [True, True, False, False, True]


def test_bad_settings_are_refused() -> None:
    planner, bound = cases.planner(), cases.constant_envelope(0.1)
    with pytest.raises(InputError, match="units must be one of"):
        paper_budget(planner, bound, 0.1, units="metres")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="positive"):
        paper_budget(planner, bound, 0.0)
