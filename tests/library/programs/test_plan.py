"""Plans name the next evaluation as promised, and survive JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muninn.errors import InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family, Plan, Program, Static

STEPS = 30

anchor_sets = st.sets(st.integers(1, 200), max_size=20).map(lambda s: (0, *sorted(s)))
gates = st.builds(
    lambda threshold, dense, longest, extra: Adaptive(threshold, dense, longest, dense + extra),
    st.floats(0.0, 1e6),
    st.integers(1, 9),
    st.integers(1, 50),
    st.integers(1, 50),
)


def growth_after(step: int, increments: list[float]) -> np.ndarray:
    steps = np.array((increments * STEPS)[:STEPS])
    steps[: step + 1] = 0.0
    return np.cumsum(steps)


def test_full_compute_names_the_following_step() -> None:
    visited = [Everywhere().next(step, 10, step + 1, np.zeros(10), 1.0) for step in range(9)]
    assert visited == list(range(1, 10))


def test_a_static_plan_walks_its_anchors_and_ends_at_the_last_step() -> None:
    plan = Static((0, 3, 4, 9))
    assert [plan.next(step, 10, 1, np.zeros(10), math.nan) for step in (0, 3, 4)] == [3, 4, 9]
    assert Static((0, 3)).next(3, 10, 2, np.zeros(10), 1.0) == 9


@settings(max_examples=200)
@given(
    step=st.integers(0, STEPS - 2),
    increments=st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=STEPS),
    scale=st.floats(1e-3, 1e3),
    gate=gates,
)
def test_an_adaptive_gate_evaluates_at_the_first_step_that_passes_its_threshold(
    step: int, increments: list[float], scale: float, gate: Adaptive
) -> None:
    growth = growth_after(step, increments)
    due = gate.next(step, STEPS, 1, growth, scale)
    if gate.cap == 2:
        assert due == STEPS - 1
        return
    if step + 1 < gate.dense:
        assert due == step + 1
        return
    passing = [s for s in range(step + 1, STEPS) if growth[s] > gate.threshold / scale]
    expected = passing[0] if passing else STEPS - 1
    assert due == min(expected, step + gate.longest, STEPS - 1)


@settings(max_examples=100)
@given(
    step=st.integers(0, STEPS - 2),
    used=st.integers(1, STEPS),
    increments=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=STEPS),
    scale=st.one_of(st.floats(0.0, 1e3), st.just(math.nan), st.just(math.inf)),
    gate=gates,
)
def test_the_next_step_lies_ahead_and_never_past_the_last(
    step: int, used: int, increments: list[float], scale: float, gate: Adaptive
) -> None:
    due = gate.next(step, STEPS, used, growth_after(step, increments), scale)
    assert step < due <= STEPS - 1


@settings(max_examples=100)
@given(
    step=st.integers(2, STEPS - 2),
    increments=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=STEPS),
    thresholds=st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)),
)
def test_a_larger_threshold_never_evaluates_sooner(
    step: int, increments: list[float], thresholds: tuple[float, float]
) -> None:
    growth = growth_after(step, increments)
    tight, loose = sorted(thresholds)
    sooner = Adaptive(tight).next(step, STEPS, 3, growth, 1.0)
    assert sooner <= Adaptive(loose).next(step, STEPS, 3, growth, 1.0)


def test_without_an_estimate_the_gate_evaluates() -> None:
    gate = Adaptive(1e9, dense=1)
    assert gate.next(0, STEPS, 1, np.zeros(STEPS), math.nan) == 1
    assert gate.next(5, STEPS, 6, np.zeros(STEPS), math.inf) == 6


def test_a_straight_prediction_is_forecast_to_the_end() -> None:
    growth = growth_after(5, [1.0])
    assert Adaptive(0.1).next(5, STEPS, 6, growth, 0.0) == STEPS - 1
    assert Adaptive(0.1, longest=4).next(5, STEPS, 6, growth, 0.0) == 9


def test_a_threshold_of_zero_evaluates_everywhere() -> None:
    growth = growth_after(5, [1.0])
    assert Adaptive(0.0).next(5, STEPS, 6, growth, 1e-6) == 6


def test_the_last_allowed_evaluation_is_kept_for_the_last_step() -> None:
    growth = growth_after(5, [100.0])
    assert Adaptive(0.0, cap=7).next(5, STEPS, 5, growth, 1.0) == 6
    assert Adaptive(0.0, cap=7).next(5, STEPS, 6, growth, 1.0) == STEPS - 1


# -- JSON --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(plan=st.one_of(st.just(Everywhere()), anchor_sets.map(Static), gates))
def test_plans_survive_json(plan: Any) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@settings(max_examples=30)
@given(
    plans=st.lists(st.one_of(anchor_sets.map(Static), gates), min_size=1, max_size=5),
    order=st.integers(0, 3),
    look_back=st.booleans(),
    name=st.text(max_size=8),
)
def test_families_survive_json(plans: list[Any], order: int, look_back: bool, name: str) -> None:
    family = Family.of(Forecast("sample", order, look_back), (Everywhere(), *plans), name)
    back = Family.from_json(json.loads(json.dumps(family.to_json())))
    assert back == family and len(back) == len(plans) + 1
    assert back.member(1) == Program(Forecast("sample", order, look_back), plans[0])


def test_what_tuning_found_survives_json_in_every_family() -> None:
    plain = Family.of(Forecast("sample", 0, False), (Everywhere(), Static((0, 3, 5))), "static")
    assert plain.to_json().keys() == {"name", "forecast", "plans"}  # as before tables existed
    found = dataclasses.replace(plain, search={"notes": ["the condition projects states"]})
    back = Family.from_json(json.loads(json.dumps(found.to_json())))
    assert back == found and back.search == found.search


def test_anchors_from_arrays_become_plain_integers() -> None:
    plan = Static(tuple(np.array([0, 4, 9])))
    assert plan == Static((0, 4, 9))
    assert json.dumps(plan.to_json()) == '{"plan": "static", "anchors": [0, 4, 9]}'


def test_full_compute_is_a_program_of_any_kind() -> None:
    program = Program.full("v")
    assert program.forecast.quantity == "v" and isinstance(program.plan, Everywhere)


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("anchors", [(), (1, 5), (0, 5, 5), (0, 7, 3), (-1, 4)])
def test_anchors_that_do_not_increase_from_zero_are_refused(anchors: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="anchors must increase from step 0"):
        Static(anchors)


@pytest.mark.parametrize("threshold", [-0.1, math.nan])
def test_a_threshold_below_zero_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match="threshold must be at least 0, got"):
        Adaptive(threshold)


@pytest.mark.parametrize("fields", [{"dense": 0}, {"longest": 0}, {"dense": 4, "cap": 4}])
def test_a_gate_that_cannot_keep_its_limits_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"dense >= 1, longest >= 1 and cap >= dense \+ 1"):
        Adaptive(0.1, **fields)


@pytest.mark.parametrize("data", [{"plan": "random"}, {}])
def test_an_unknown_plan_is_refused_with_the_known_ones(data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="known are everywhere, static, adaptive"):
        Plan.from_json(data)


@pytest.mark.parametrize("plans", [(Everywhere(),), (Static((0, 5)), Static((0, 7))), ()])
def test_a_family_without_full_compute_first_or_with_nothing_else_is_refused(plans: Any) -> None:
    with pytest.raises(InputError, match=r"full compute \(Everywhere\) as member 0"):
        Family.of(Forecast("sample"), plans, "static")
