"""Second looks as members of a family: found without a run, and true when they run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import muninn
from certify_cases import tuned
from muninn.certify.certificate import Certificate
from muninn.certify.frontier import Frontier, ladder
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.second_look import TARGETS, look_members
from muninn.programs.plan import Family
from muninn.programs.second_look import SecondLook
from waving_cases import RARE, waving, waving_contexts, waving_planner

HARD = {"hard": 0.15, "fastest": 12.0}


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    return Frontier(waving(96, **HARD), journal=Journal(), **RARE)


@pytest.fixture(scope="module")
def family() -> Family:
    return tuned(waving(96, **HARD), **RARE)


def test_it_wins_where_few_calls_are_hard(family: Family) -> None:
    assert family.search is not None and family.search["winner"] == "second look"
    assert family.search["evaluations"] < family.search["tables"]
    assert any(isinstance(program, SecondLook) for program in family.programs)
    assert Family.from_json(family.to_json()) == family
    paired = waving(96, **HARD)
    calls = list(range(paired.count))
    spent = [paired.measure_in_batches(m, calls).evaluations.mean() for m in family.programs]
    assert spent == sorted(spent, reverse=True)


def test_what_tuning_expects_is_what_a_run_does(frontier: Frontier) -> None:
    rungs = [rung for rung in ladder(frontier.steps) if frontier.offers(rung)]
    found = [e for e in look_members(frontier, rungs, 8) if isinstance(e.program, SecondLook)]
    assert found
    paired, calls = frontier.paired, list(range(frontier.paired.count))
    for entry in found:
        measured = paired.measure_in_batches(entry.program, calls)
        assert measured.evaluations.mean() == pytest.approx(entry.evaluations)
        expected = frontier.excess_of(entry)
        np.testing.assert_allclose(measured.deviation / 0.05, expected, atol=1e-4)
        hard = paired.contexts(calls)[:, 0].numpy() > 0.0
        assert measured.evaluations[hard].mean() > measured.evaluations[~hard].mean()


def test_members_are_as_safe_as_they_are_tuned_to_be(frontier: Frontier) -> None:
    rungs = [rung for rung in ladder(frontier.steps) if frontier.offers(rung)]
    found = look_members(frontier, rungs, 8)
    allowed = [target * frontier.share * frontier.paired.count for target in TARGETS]
    assert [entry.cautious for entry in found] == [True] * 2 + [False] * (len(found) - 2)
    assert found[0].evaluations > found[1].evaluations > found[2].evaluations
    found = found[2:]
    assert len(found) <= len(TARGETS)
    spent = [entry.evaluations for entry in found]
    assert spent == sorted(spent, reverse=True)
    for entry, most in zip(found[::-1], allowed[::-1], strict=False):
        assert entry.beyond <= most + 1e-9


def test_nothing_is_run_twice() -> None:
    paired, journal = waving(64, **HARD), Journal()
    first = Frontier(paired, journal=journal, **RARE)
    rungs = [rung for rung in ladder(first.steps) if first.offers(rung)]
    found = look_members(first, rungs, 8)
    again = Frontier(waving(64, **HARD), journal=journal, **RARE)

    def refuse(*_: object) -> None:
        raise AssertionError("a program ran again")

    again.paired.measure = refuse  # type: ignore[method-assign]
    again.paired.run = refuse  # type: ignore[method-assign]
    repeated = look_members(again, rungs, 8)
    assert [entry.program for entry in repeated] == [entry.program for entry in found]


@pytest.mark.parametrize("asked", [{"groups": {"fewsteps"}}, {"objective": "worst"}])
def test_one_method_alone_and_the_worst_call_have_no_second_look(asked: dict[str, Any]) -> None:
    found = tuned(waving(48, **HARD), **RARE, **asked)
    assert all(program.fixed for program in found.programs)


@pytest.fixture(scope="module")
def issued() -> Certificate:
    return muninn.calibrate(
        waving_planner(), waving_contexts(700, **HARD, seed=3), tolerance=0.05, risk=0.1,
        progress=False,
    )  # fmt: skip


def test_it_is_certified_deployed_and_keeps_its_promise(
    issued: Certificate, tmp_path: Path
) -> None:
    assert isinstance(issued.program, SecondLook)
    loaded = Certificate.load(issued.save(tmp_path / "c"))
    assert loaded.program == issued.program
    contexts = waving_contexts(600, **HARD, seed=9)
    paired = PairedCalls(waving_planner(), contexts, 600, rms_step, 5)
    measured = paired.measure_in_batches(issued.program, list(range(600)))
    beyond = int((measured.deviation > 0.05).sum())
    assert stats.binom.sf(beyond - 1, 600, 0.1) > 1e-3
    fast = muninn.cache(waving_planner(), loaded)
    noise = paired.noise([0, 1, 2])
    _, record = fast(contexts[:3], noise=noise)
    assert record.evaluations.tolist() == measured.evaluations[:3].tolist()
    assert record.bound is not None and record.rank is not None
    assert all(math.isfinite(value) for value in (*record.bound, *record.rank))
    most = issued.program.most_evaluations(30)
    assert issued.realised[issued.member - 1]["evaluations_max"] == most
