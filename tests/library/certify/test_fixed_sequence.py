"""One test a member, in a frozen order: what is accepted, how often wrongly, and who may choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from certify_cases import certificate, contexts
from muninn.certify.certificate import Certificate
from muninn.certify.risk import choice_limit, order_statistic, scan_members
from muninn.model.schedule import FloatArray

UNITS, RISK, CONFIDENCE, DRAWS = 200, 0.05, 0.95, 4000
ALLOWED = order_statistic(UNITS, RISK, CONFIDENCE) - 1
TRUE = np.array([0.0, 0.005, 0.01, 0.008, 0.01, 0.012, 0.0501, 0.0501, 0.02, 0.06])
"""Risks of the members: six good ones, then bad ones, a good one among them."""

FIRST_BAD = 6


def violations(dependence: str, generator: np.random.Generator) -> FloatArray:
    """Whether units violate under members, (DRAWS, UNITS, members)."""
    if dependence == "independent":
        return np.asarray(generator.random((DRAWS, UNITS, len(TRUE))) < TRUE)
    draws = generator.random((DRAWS, UNITS, 1))
    if dependence == "nested":
        return np.asarray(draws < TRUE)
    shifted = (draws + np.cumsum(TRUE) - TRUE) % 1.0  # each member violates on units of its own
    return np.asarray(shifted < TRUE)


def accepted(excess: FloatArray, running: bool) -> FloatArray:
    """The last accepted member of each draw, (DRAWS,)."""
    return np.array(
        [
            scan_members(([c] for c in one.T), UNITS, ALLOWED, running=running).accepted - 1
            for one in 2.0 * excess
        ]
    )


@pytest.mark.parametrize("dependence", ["independent", "nested", "apart"])
def test_a_bad_member_is_accepted_no_more_often_than_promised(dependence: str) -> None:
    excess = violations(dependence, np.random.default_rng(0))
    assert np.abs(excess.mean(axis=(0, 1)) - TRUE).max() < 2e-3
    member = accepted(excess, running=False)
    wrong = float(np.mean(TRUE[member] > RISK))
    reached = float(np.mean(member >= FIRST_BAD))  # the first bad one was accepted
    exact = stats.binom.cdf(ALLOWED, UNITS, TRUE[FIRST_BAD])
    delta = 1.0 - CONFIDENCE
    assert wrong <= reached <= delta
    error = np.sqrt(exact * (1.0 - exact) / DRAWS)
    assert exact < delta and reached <= exact + 3.0 * error
    if dependence == "independent":  # the order makes the test no weaker than its members are
        passing = stats.binom.cdf(ALLOWED, UNITS, TRUE[1 : FIRST_BAD + 1])
        assert abs(reached - passing.prod()) < 3.0 * error


def test_unlike_members_go_further_by_their_own_counts_than_by_the_running_maximum() -> None:
    excess = violations("independent", np.random.default_rng(1))
    own, running = accepted(excess, running=False), accepted(excess, running=True)
    assert (running <= own).all()
    assert own.mean() > running.mean() + 1.0
    passing = stats.binom.cdf(ALLOWED, UNITS, TRUE[1:FIRST_BAD]).prod()  # all good ones
    reached = np.mean(own >= FIRST_BAD - 1)
    assert abs(reached - passing) < 3.0 * np.sqrt(passing * (1.0 - passing) / DRAWS)
    assert np.mean(running >= FIRST_BAD - 1) < 0.2 < 0.7 < passing
    nested = violations("nested", np.random.default_rng(1))[:200]
    ordered = nested[:, :, np.argsort(TRUE)]  # nested ones lose nothing
    assert (accepted(ordered, running=False) == accepted(ordered, running=True)).all()


# -- who may choose ---------------------------------------------------------------------------


def test_the_member_and_the_free_choice_hold_together() -> None:
    """Ten members apart from each other, whose maximum is just too risky, then bad ones."""
    units = 240
    allowed, free = order_statistic(units, RISK, 0.95) - 1, choice_limit(units, RISK, 0.95)
    assert -1 < free < allowed
    spent = stats.binom.cdf([allowed, free], units, RISK).sum()
    assert spent <= 0.05 < spent + stats.binom.pmf(free + 1, units, RISK)
    true = np.array([0.0, *[0.00502] * 10, *[0.0501] * 4])
    maximum = np.minimum(np.cumsum(true), 1.0)
    generator, wrong = np.random.default_rng(3), {"apart": 0, "together": 0}
    for _ in range(DRAWS):
        draws = generator.random((units, 1)) - (maximum - true)
        excess = np.where((draws >= 0.0) & (draws < true), 2.0, 0.5)
        found = scan_members(([c] for c in excess.T), units, allowed, running=False)
        for name, limit in (("apart", allowed), ("together", free)):
            chosen = found.choosable(limit) == found.accepted
            risk = maximum if chosen else true
            wrong[name] += risk[found.accepted - 1] > RISK
    error = np.sqrt(0.05 * 0.95 / DRAWS)
    assert wrong["together"] / DRAWS <= 0.05 + 3.0 * error
    assert wrong["apart"] / DRAWS > 0.05 + 3.0 * error  # what the same limit for both would do


@pytest.fixture(scope="module")
def issued() -> Certificate:
    return certificate(calls=contexts(300))  # enough for the member and the free choice together


@pytest.mark.parametrize(
    ("changes", "choices"),
    [
        ({"member": 3, "choosable": 3}, [0, 1, 2, 3]),
        ({"member": 3, "choosable": 2}, [0, 3]),
        ({"member": 3, "choosable": 0}, [0, 3]),
        ({"member": 0, "choosable": 0}, [0]),
        ({"member": 3, "choosable": 3, "loop": "closed"}, [3]),
        ({"member": 3, "choosable": 1, "loop": "closed"}, [3]),
        ({"member": 3, "choosable": None, "schema": 2}, [0, 1, 2, 3]),
        ({"member": 3, "choosable": 3, "schema": 4}, [0, 3]),
        ({"member": 3, "choosable": 3, "schema": 4, "confidence": None}, [0, 1, 2, 3]),
    ],
)
def test_a_call_chooses_freely_only_where_the_running_maximum_allows_it(
    issued: Certificate, changes: dict[str, object], choices: list[int]
) -> None:
    assert replace(issued, **changes).choices() == choices  # type: ignore[arg-type]


def test_choices_survive_the_file_and_an_older_one_has_none(
    issued: Certificate, tmp_path: Path
) -> None:
    assert issued.member > 0 and issued.choosable == issued.member
    some = replace(issued, choosable=issued.member - 1)
    loaded = Certificate.load(some.save(tmp_path / "c"))
    assert loaded.choosable == issued.member - 1
    assert loaded.choices() == [0, issued.member]
    older = Certificate.load(replace(some, schema=2).save(tmp_path / "older"))
    assert older.choosable is None and older.schema == 2
    assert older.choices() == list(range(issued.member + 1))


def test_a_marginal_certificate_lets_calls_choose_among_all_its_members() -> None:
    issued = certificate(confidence=None)
    assert issued.member == issued.choosable > 0
    assert issued.choices() == list(range(issued.member + 1))
