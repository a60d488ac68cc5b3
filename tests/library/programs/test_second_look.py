"""A second look as data: what it holds, what it refuses, and who is in doubt."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from muninn.errors import InputError
from muninn.programs.caches import forecast
from muninn.programs.forecast import Forecast
from muninn.programs.methods import few_steps, heun
from muninn.programs.plan import AnyProgram, Program, Static
from muninn.programs.second_look import SecondLook, judged_steps
from muninn.programs.spacing import sampler_states
from muninn.programs.table import Table
from runtime_cases import samplers


def table(count: int, name: str = "ddim") -> Table:
    sampler = samplers()[name]
    own = sampler_states(sampler)
    at = np.linspace(0, len(own) - 1, count).round().astype(int)
    return forecast(sampler, [own[place] for place in at], "sample", 1)


def look(**changes: Any) -> SecondLook:
    held: dict[str, Any] = {"first": table(3), "second": table(5), "weights": (1.0, 0.5)}
    return SecondLook(**{**held, "limit": 0.25, **changes})


def test_its_json_names_kinds_and_comes_back_equal() -> None:
    stored = json.loads(json.dumps(look().to_json()))
    assert stored["program"] == "second look"
    assert stored["first"]["program"] == stored["second"]["program"] == "table"
    assert AnyProgram.from_json(stored) == look()
    assert hash(AnyProgram.from_json(stored)) == hash(look())


def test_the_second_may_be_full_compute() -> None:
    own = look(second=Program.full("sample"))
    assert AnyProgram.from_json(json.loads(json.dumps(own.to_json()))) == own
    assert str(own).endswith("if in doubt, full compute") and own.most_evaluations(50) == 53


def test_it_says_what_it_does_and_what_it_may_take() -> None:
    assert str(look()) == f"{table(3)}; if in doubt, {table(5)}"
    assert look().most_evaluations(100) == 8 and not look().fixed


def test_doubt_is_a_product_of_powers_of_the_differences() -> None:
    differences = np.array([[1.0, 1.0], [math.e, 1.0], [1.0, math.e], [0.0, 0.0], [np.nan, 1.0]])
    # Logarithms weigh 1 and 1/2, the limit is 1/4: the largest and the smallest, and NaN.
    assert look().doubtful(differences).tolist() == [False, True, True, False, True]
    assert look(limit=0.75).doubtful(differences[:3]).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": math.nan}, "finite"),
        ({"limit": "far"}, "numbers"),
        ({"weights": ()}, "one a gap"),
        ({"weights": (1.0, math.inf)}, "finite"),
        ({"weights": None}, "numbers"),
        ({"second": look()}, "two tables"),
        ({"second": Program(Forecast("sample"), Static((0, 5)))}, "full compute"),
        ({"first": Program.full("sample")}, "two tables"),
    ],
)
def test_what_it_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        look(**changes)


@pytest.mark.parametrize("lost", ["first", "second", "weights", "limit"])
def test_json_without_a_part_is_refused(lost: str) -> None:
    stored = look().to_json()
    del stored[lost]
    with pytest.raises(InputError):
        AnyProgram.from_json(stored)


def test_a_table_in_the_place_of_another_program_is_refused() -> None:
    stored = look().to_json()
    stored["first"] = look().to_json()
    with pytest.raises(InputError, match="two tables"):
        AnyProgram.from_json(stored)


def test_steps_that_are_evaluated_twice_are_judged_once() -> None:
    sampler = samplers()["euler"]
    own = sampler_states(sampler)
    states = [own[0], own[4], own[-1]]
    assert judged_steps(sampler, few_steps(sampler, states)) == [0, 4]
    twice = heun(sampler, states)
    assert len(twice.states) == 5  # the last state, too, is evaluated twice
    assert judged_steps(sampler, twice) == [0, 4, len(own) - 1]
