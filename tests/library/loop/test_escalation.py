"""The escalation machine: hysteresis, screening, selection, deadlines. All of it is pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop_cases import record
from muninn.errors import InputError
from muninn.loop.escalation import (
    VARIANTS,
    Ask,
    Candidate,
    Escalation,
    Execute,
    Hold,
    Mode,
    Needs,
    Stage,
    State,
    damped,
    rank_of,
)

MACHINE = Escalation()
GOOD = Candidate(0.3, None)
FLAWED = Candidate(0.1, "it hits a wall")
signals = st.lists(st.one_of(st.floats(0.0, 1.0), st.just(math.nan)), max_size=30)
modes = st.sampled_from(Mode)
seconds = st.floats(0.0, 2.0)
candidates = st.builds(
    Candidate,
    st.floats(allow_nan=True),
    st.one_of(st.none(), st.just("it hits a wall")),
    st.booleans(),
)
machines = st.builds(
    Escalation,
    allowed=st.sampled_from(list(VARIANTS.values())),
    without_full=st.sampled_from(["damp", "hold"]),
)
calls = st.builds(
    Stage,
    seconds,
    st.builds(Needs, seconds, seconds, seconds),
    st.one_of(st.none(), candidates),
    st.lists(candidates, max_size=4).map(tuple),
    st.one_of(st.none(), candidates),
    st.one_of(st.none(), st.just("the planner died")),
    st.one_of(st.none(), st.just("the risk is too high")),
)


# -- hysteresis ---------------------------------------------------------------------------------


@given(signals)
def test_a_mode_is_left_only_after_two_consecutive_clear_calls(given_signals: list[float]) -> None:
    state = State()
    for at, signal in enumerate(given_signals):
        before, state = state.mode, MACHINE.observe(state, signal)
        if state.mode < before:
            assert state.mode is Mode.NOMINAL
            assert at >= 1
            assert max(given_signals[at - 1 : at + 1]) <= MACHINE.clear
        assert state.mode >= MACHINE.level(signal)


@given(signals)
def test_the_mode_is_the_highest_level_since_the_last_clearing(given_signals: list[float]) -> None:
    state, since = State(), 0
    for at, signal in enumerate(given_signals):
        state = MACHINE.observe(state, signal)
        pair = given_signals[max(at - 1, since) : at + 1]
        if len(pair) == 2 and all(value <= MACHINE.clear for value in pair):
            since = at  # a third clear call clears once more: nothing changes
        levels = [MACHINE.level(value) for value in given_signals[since : at + 1]]
        assert state.mode == max(levels)


def test_thresholds_are_exceeded_not_met() -> None:
    assert [MACHINE.level(value) for value in (0.85, 0.86, 0.95, 0.96, 0.99, 0.995)] == [
        Mode.NOMINAL, Mode.DAMP, Mode.DAMP, Mode.RESAMPLE, Mode.RESAMPLE, Mode.FULL,
    ]  # fmt: skip
    assert MACHINE.observe(State(Mode.FULL, 1), 0.75) == State(Mode.NOMINAL, 2)


def test_a_call_without_a_signal_is_not_a_clear_one() -> None:
    state = MACHINE.observe(State(Mode.DAMP, 1), math.nan)
    assert state == State(Mode.DAMP, 0)


# -- one call -----------------------------------------------------------------------------------


@given(machines, modes, calls, seconds)
def test_only_screened_plans_are_executed_and_only_in_time(
    machine: Escalation, mode: Mode, call: Stage, now: float
) -> None:
    action = machine.step(mode, call, now)
    if isinstance(action, Hold):
        assert action.reason
        return
    assert call.failure is None
    assert now <= call.deadline
    left = call.deadline - now
    if isinstance(action, Ask):
        needed = getattr(call.needs, action.source)
        assert needed <= left
        assert not getattr(call, action.source)
        return
    plans = {"cached": (call.cached,), "full": (call.full,), "resampled": call.resampled}
    plan = plans[action.source][action.row]
    assert plan is not None
    assert plan.flaw is None
    assert action.factor in (0.5, 0.7, 1.0)


@given(machines, modes, seconds, st.lists(candidates, min_size=6, max_size=6))
def test_a_call_ends_after_at_most_two_asks(
    machine: Escalation, mode: Mode, deadline: float, plans: list[Candidate]
) -> None:
    call, asked = Stage(deadline), []
    while isinstance(action := machine.step(mode, call, 0.0), Ask):
        asked.append(action.source)
        found: Any = tuple(plans[:4]) if action.source == "resampled" else plans[4]
        call = replace(call, **{action.source: found})
    assert asked[:1] == ["cached"]
    assert len(asked) <= 2


@given(modes, st.lists(candidates, min_size=1, max_size=6))
def test_the_smallest_estimate_among_the_feasible_is_selected(
    mode: Mode, plans: list[Candidate]
) -> None:
    call = Stage(1.0, cached=replace(GOOD, flaw="it hits a wall"), resampled=tuple(plans))
    machine = Escalation(allowed=VARIANTS["resample+dampen"])
    action = machine.step(mode, call, 0.0)
    usable = [plan.estimate for plan in plans if plan.flaw is None]
    if not usable:
        assert isinstance(action, Hold)
        assert "it hits a wall" in action.reason
        return
    assert isinstance(action, Execute)
    assert action.factor == 0.5
    known = [value for value in usable if not math.isnan(value)]
    chosen = plans[action.row].estimate
    assert chosen == min(known) if known else math.isnan(chosen)


def test_an_unknown_estimate_counts_as_the_largest() -> None:
    unknown = Candidate(math.nan, None)
    for plans, row in (((unknown, GOOD), 1), ((GOOD, unknown), 0)):
        call = Stage(1.0, cached=GOOD, resampled=plans)
        assert MACHINE.step(Mode.RESAMPLE, call, 0.0) == Execute("resampled", row, 0.5)


@pytest.mark.parametrize(
    ("mode", "action"),
    [
        (Mode.NOMINAL, Execute("cached", 0, 1.0)),
        (Mode.DAMP, Execute("cached", 0, 0.7)),
        (Mode.RESAMPLE, Ask("resampled", 4)),
        (Mode.FULL, Ask("full", 1)),
    ],
)
def test_the_interventions_of_the_paper(mode: Mode, action: object) -> None:
    assert MACHINE.step(mode, Stage(1.0), 0.0) == Ask("cached", 1)
    assert MACHINE.step(mode, Stage(1.0, cached=GOOD), 0.0) == action


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("muninn-only", [1.0, 1.0, 1.0, 1.0]),
        ("dampen", [1.0, 0.7, 0.5, 0.5]),
        ("resample+dampen", [1.0, 0.7, "resampled", "resampled"]),
        ("full-override", [1.0, 1.0, 1.0, "full"]),
        ("combined", [1.0, 0.7, "resampled", "full"]),
    ],
)
def test_the_five_variants_of_the_study(variant: str, expected: list[float | str]) -> None:
    machine = Escalation(allowed=VARIANTS[variant])
    found = []
    for mode in Mode:
        action = machine.step(mode, Stage(1.0, cached=GOOD), 0.0)
        assert isinstance(action, Ask | Execute)
        found.append(action.factor if isinstance(action, Execute) else action.source)
    assert found == expected


def test_an_override_is_executed_as_it_is_and_only_if_it_passes_the_screen() -> None:
    call = Stage(1.0, cached=GOOD, full=GOOD)
    assert MACHINE.step(Mode.FULL, call, 0.0) == Execute("full", 0, 1.0)
    assert MACHINE.step(Mode.FULL, replace(call, full=FLAWED), 0.0) == Hold("it hits a wall")


def test_an_override_that_does_not_fit() -> None:
    call = Stage(1.0, Needs(full=0.9), cached=GOOD)
    certified = MACHINE.step(Mode.FULL, call, 0.5)
    assert certified == Execute("cached", 0, 0.5, "full compute needs 0.9 s and 0.5 s are left")
    paper = replace(MACHINE, without_full="hold").step(Mode.FULL, call, 0.5)
    assert paper == Hold("full compute needs 0.9 s and 0.5 s are left")
    assert MACHINE.step(Mode.FULL, call, 0.05) == Ask("full", 1)


def test_without_time_to_resample_the_damped_plan_is_executed_if_it_passes_the_screen() -> None:
    call = Stage(1.0, Needs(resampled=2.0), cached=GOOD)
    action = MACHINE.step(Mode.RESAMPLE, call, 0.0)
    assert action == Execute("cached", 0, 0.5, "resampling needs 2 s and 1 s are left")
    held = MACHINE.step(Mode.RESAMPLE, replace(call, cached=FLAWED), 0.0)
    assert isinstance(held, Hold)
    assert "it hits a wall" in held.reason


def test_a_flawed_plan_is_replaced_by_candidates_where_that_is_allowed() -> None:
    call = Stage(1.0, cached=FLAWED)
    assert MACHINE.step(Mode.NOMINAL, call, 0.0) == Ask("resampled", 4)
    alone = Escalation(allowed=VARIANTS["muninn-only"])
    assert alone.step(Mode.NOMINAL, call, 0.0) == Hold("it hits a wall")


def test_full_compute_in_the_certified_programs_place_needs_no_escalation() -> None:
    call = Stage(1.0, cached=Candidate(0.3, None, full=True))
    assert MACHINE.step(Mode.FULL, call, 0.0) == Execute("cached", 0, 1.0)


def test_an_alarm_means_full_compute_or_nothing() -> None:
    call = Stage(1.0, alarm="the risk is too high")
    assert MACHINE.step(Mode.NOMINAL, call, 0.0) == Ask("full", 1)
    done = MACHINE.step(Mode.NOMINAL, replace(call, full=GOOD), 0.9)
    assert done == Execute("full", 0, 1.0, "the risk is too high")
    held = MACHINE.step(Mode.NOMINAL, replace(call, needs=Needs(full=2.0)), 0.0)
    assert isinstance(held, Hold)
    assert "too high" in held.reason


def test_nothing_is_begun_that_cannot_be_ended_in_time() -> None:
    held = MACHINE.step(Mode.NOMINAL, Stage(1.0, Needs(cached=0.3)), 0.8)
    assert held == Hold("planning needs 0.3 s and 0.2 s are left")
    late = MACHINE.step(Mode.NOMINAL, Stage(1.0, cached=GOOD), 1.5)
    assert late == Hold("the deadline passed 0.5 s ago")
    assert isinstance(MACHINE.step(Mode.NOMINAL, Stage(math.nan, cached=GOOD), 0.0), Hold)


# -- around it ----------------------------------------------------------------------------------


def test_saturation_comes_after_damping() -> None:
    assert damped([3.0, -8.0, 0.5], 0.5, [-1.0, -2.0, -1.0], [1.0, 2.0, 1.0]).tolist() == [
        1.0, -2.0, 0.25,
    ]  # fmt: skip


def test_the_signal_of_certified_mode_is_the_rank() -> None:
    assert rank_of(record([0.1, 0.2], [0.3, 0.9])).tolist() == [0.3, 0.9]
    assert np.isnan(rank_of(record([0.1]))).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warn": 0.5}, "clear <= warn"),
        ({"full": math.nan}, "finite"),
        ({"clear_calls": 0}, "at least 1"),
        ({"candidates": 0}, "at least 1"),
        ({"factors": (0.7, 0.0)}, r"\(0, 1\]"),
        ({"without_full": "hope"}, "'damp' or 'hold'"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Escalation(**change)
