"""A table says what is wrong with it, survives JSON, and its noise and estimates are identities."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.methods import few_steps, heun, methods
from muninn.programs.own_noise import noise_pieces
from muninn.programs.plan import AnyProgram, Family, Program
from muninn.programs.spacing import State, sampler_states, spread_steps
from muninn.programs.table import (
    Table,
    embedded_differences,
    nearest_steps,
    steps_of,
)

SCHEDULE = Schedule.linear(100, end=0.06)
STATES = (State(30, 0.2, 0.98), State(20, 0.6, 0.8), State(10, 0.8, 0.6))
WEIGHTS = (((0.5, 0.5, 0.0, 0.0), (0.2, 0.3, 0.5, 0.0), (0.0, -0.1, 0.1, 1.0)),)
FIELDS: dict[str, Any] = {"states": STATES, "weights": WEIGHTS, "noise": (0.0, 0.0, 0.0)}


def with_entry(row: int, column: int, value: float) -> Any:
    changed = np.array(WEIGHTS)
    changed[0, row, column] = value
    return changed.tolist()


def angles(states: Any) -> Any:
    return np.array([np.arctan2(state.noise, state.signal) for state in states])


# -- what a table is ---------------------------------------------------------------------------


def test_a_table_is_a_value() -> None:
    table = Table("by hand", **FIELDS)
    assert str(table) == "3 evaluations, by hand"
    assert table.fixed and table.most_evaluations(100) == 3
    assert np.array_equal(table.array, WEIGHTS)
    again = Table("by hand", [list(state) for state in STATES], np.array(WEIGHTS), [0, 0, 0])
    assert again == table and len({again, table}) == 1
    assert replace(table, weights=with_entry(0, 0, 0.6)) != table
    assert all(isinstance(state, State) for state in again.states)


WRONG = {
    "one evaluation": (
        {"states": STATES[:1], "weights": (((0.5, 0.5),),), "noise": (0.0,)},
        "needs at least 2",
    ),
    "rows": ({"weights": (WEIGHTS[0][:2],)}, r"weights \(channels, 3, features\)"),
    "no channels": ({"weights": WEIGHTS[0]}, r"weights \(channels, 3, features\)"),
    "noise": ({"noise": (0.0, 0.0)}, r"3 weights of noise, got \(1, 3, 4\), 2"),
    "features": (
        {"weights": (tuple((*row, 0.0) for row in WEIGHTS[0]),)},
        "5 features do not belong to 3 evaluations",
    ),
    "ragged": ({"weights": ((WEIGHTS[0][0], WEIGHTS[0][1][:2], WEIGHTS[0][2]),)}, "numbers"),
    "words": ({"noise": ("none", 0.0, 0.0)}, "holds states and numbers"),
    "half a state": ({"states": ((30, 0.2), *STATES[1:])}, "holds states and numbers"),
    "no states": ({"states": None}, "holds states and numbers"),
    "NaN": ({"weights": with_entry(1, 1, float("nan"))}, "finite weights"),
    "Inf": ({"noise": (0.0, float("inf"), 0.0)}, "finite weights"),
    "NaN level": ({"states": (State(30, float("nan"), 1.0), *STATES[1:])}, "finite"),
    "noiseless": ({"states": (*STATES[:2], State(10, 1.0, 0.0))}, "noise above 0"),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_what_is_wrong_is_said_in_words(wrong: str) -> None:
    changes, message = WRONG[wrong]
    with pytest.raises(InputError, match=message):
        Table("by hand", **{**FIELDS, **changes})


@given(st.booleans(), st.integers(0, 2), st.integers(0, 2), st.integers(1, 3))
def test_no_state_depends_on_a_later_evaluation(
    raw: bool, row: int, evaluation: int, channels: int
) -> None:
    weights = np.zeros((channels, 3, 7 if raw else 4))
    weights[-1, row, 1 + evaluation + (3 if raw else 0)] = 0.1
    fields = {**FIELDS, "weights": weights}
    if evaluation > row:  # row r is the state that follows evaluation r
        with pytest.raises(InputError, match="depends on an evaluation that comes later"):
            Table("by hand", **fields)
    else:
        assert np.array_equal(Table("by hand", **fields).array, weights)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(arrays(np.float64, (2, 3, 7), elements=finite), st.lists(finite, min_size=3, max_size=3))
def test_json_keeps_every_bit(weights: Any, noise: list[float]) -> None:
    lower = np.tile(np.tri(3), (1, 2))
    weights[:, :, 1:] = np.where(lower, weights[:, :, 1:], 0.0)
    table = Table("by hand", STATES, weights, tuple(noise))
    read = AnyProgram.from_json(json.loads(json.dumps(table.to_json())))
    assert read == table and hash(read) == hash(table) and type(read) is Table
    assert read.array.tobytes() == weights.tobytes()
    assert np.array(read.noise).tobytes() == np.array(noise).tobytes()


@pytest.mark.parametrize(
    "sampler",
    [ddim(SCHEDULE, 12), ddpm(SCHEDULE, 12), ddim(SCHEDULE, 12, clip=1.0, keep_epsilon=True)],
)
def test_tables_of_every_method_survive_json_and_live_in_families(sampler: Sampler) -> None:
    states = [sampler_states(sampler)[step] for step in (0, 2, 3, 7, 11)]
    tables = tuple(method.build(sampler, states) for method in methods(sampler).values())
    assert len(set(tables)) == len(tables)
    assert [AnyProgram.from_json(table.to_json()) for table in tables] == list(tables)
    family = Family((Program.full(sampler.kind), *tables), "frontier")
    assert Family.from_json(json.loads(json.dumps(family.to_json()))) == family


def test_malformed_json_is_refused() -> None:
    data = Table("by hand", **FIELDS).to_json()
    with pytest.raises(InputError, match="malformed table program"):
        AnyProgram.from_json({**data, "speed": 3})
    with pytest.raises(InputError, match="unknown kind of program 'tables'"):
        AnyProgram.from_json({**data, "program": "tables"})
    with pytest.raises(InputError, match="finite weights"):
        AnyProgram.from_json({**data, "weights": with_entry(0, 0, float("nan"))})


# -- steps -------------------------------------------------------------------------------------


def test_steps_of_states() -> None:
    sampler = ddim(SCHEDULE, 25)  # 96, 92, ..., 0
    states = tuple(State(t, 0.5, 0.5) for t in (96, 91, 89, 88, 0))
    assert steps_of(sampler, states) == [0, None, None, 2, 24]
    assert nearest_steps(sampler, states) == [0, 1, 2, 2, 24]


# -- error estimates ---------------------------------------------------------------------------


def evaluated_states() -> dict[str, tuple[State, ...]]:
    sampler, flow = ddim(Schedule.cosine(100), kind="sample"), euler(20)
    own = sampler_states(sampler)
    return {
        "few": tuple(own[place] for place in (0, 5, 30, 31, 70, 99)),
        "all": tuple(own),
        "flow": tuple(sampler_states(flow)),
        "heun": heun(sampler, [own[place] for place in (0, 20, 50, 99)]).states,
    }


@pytest.mark.parametrize("name", list(evaluated_states()))
def test_a_constant_and_a_linear_prediction_have_no_estimated_error(name: str) -> None:
    states = evaluated_states()[name]
    rows, angle = embedded_differences(states), angles(states)
    assert rows.shape == (len(states) - 1, len(states))
    assert rows @ np.ones(len(states)) == pytest.approx(np.zeros(len(rows)), abs=1e-12)
    # One evaluation makes no line: a first gap is judged by how far the prediction has moved.
    known = next(place for place in range(len(states)) if angle[place] != angle[0])
    assert (rows @ angle)[known:] == pytest.approx(np.zeros(len(rows) - known), abs=1e-12)
    bent = np.abs(rows @ angle**2)
    moved = np.diff(angle) != 0.0
    assert (bent[moved] > 0.0).all() and not bent[~moved].any()


@pytest.mark.parametrize("name", list(evaluated_states()))
def test_an_estimate_uses_what_the_gap_has_seen_and_no_more(name: str) -> None:
    rows = embedded_differences(evaluated_states()[name])
    assert not np.triu(rows, 2).any()  # row g ends with evaluation g + 1


def test_a_jump_weighs_the_share_of_noise_that_its_gap_removes() -> None:
    states = tuple(sampler_states(ddim(SCHEDULE))[place] for place in (0, 40, 99))
    ratio = [state.noise / state.signal for state in states]
    jump = embedded_differences(states) @ np.array([0.0, 0.0, 1.0])
    assert jump == pytest.approx([0.0, 1.0 - ratio[2] / ratio[1]])


# -- the sampler's own noise -------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", [ddpm(SCHEDULE), ddpm(SCHEDULE, 25), ddim(SCHEDULE, 25, eta=1.0)]
)
@pytest.mark.parametrize("count", [2, 5, 12, 25])
def test_noise_has_the_law_of_the_longer_step(sampler: Sampler, count: int) -> None:
    """With x0 held, steps of a DDPM compose to its posterior: exactly, whatever the gap."""
    steps = spread_steps(len(sampler), count)
    pieces = noise_pieces(sampler, [*steps[1:], len(sampler)])
    levels = [*(sampler_states(sampler)[step] for step in steps), State(0, 1.0, 0.0)]
    for (carry, weights), (now, after) in zip(pieces, itertools.pairwise(levels), strict=True):
        alpha = (now.signal / after.signal) ** 2
        variance = after.noise**2 / now.noise**2 * (1.0 - alpha)
        assert carry == pytest.approx(alpha**0.5 * after.noise**2 / now.noise**2, abs=1e-12)
        assert sum(weight**2 for weight in weights.values()) == pytest.approx(variance, abs=1e-12)


@given(st.sets(st.integers(1, 24), max_size=8), st.sampled_from([0.3, 0.7, 1.0]))
def test_the_noise_of_a_gap_is_that_of_its_parts(inner: set[int], eta: float) -> None:
    sampler = ddim(SCHEDULE, 25, eta=eta)
    total = dict[int, float]()
    for carry, weights in noise_pieces(sampler, [*sorted(inner), 25]):
        total = {step: weight * carry for step, weight in total.items()} | weights
    ((_, whole),) = noise_pieces(sampler, [25])
    assert total.keys() == whole.keys() == set(sampler.drawing)
    assert [total[step] for step in whole] == pytest.approx(list(whole.values()), abs=1e-14)


def test_a_deterministic_sampler_has_no_noise() -> None:
    sampler = ddim(SCHEDULE, 25)
    assert all(not weights for _, weights in noise_pieces(sampler, [3, 10, 25]))
    states = [sampler_states(sampler)[step] for step in (0, 3, 24)]
    assert few_steps(sampler, states).noise == (0.0, 0.0, 0.0)
    assert few_steps(ddpm(SCHEDULE, 25), states).noise == (1.0, 1.0, 1.0)
