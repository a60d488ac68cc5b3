"""One test a member, in a frozen order: what is accepted, how often wrongly, and who may choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from certify_cases import certificate
from muninn.certify.certificate import Certificate
from muninn.certify.risk import order_statistic, scan_members, violation_limits
from muninn.model.schedule import FloatArray

UNITS, RISK, CONFIDENCE, DRAWS = 200, 0.05, 0.95, 4000
ALLOWED = order_statistic(UNITS, RISK, CONFIDENCE) - 1
LIMITS = violation_limits(UNITS, RISK, CONFIDENCE)
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


def accepted(excess: FloatArray, running: bool, limits: tuple[int, ...] = (ALLOWED,)) -> FloatArray:
    """The last accepted member of each draw, (DRAWS,)."""
    return np.array(
        [
            scan_members(([c] for c in one.T), UNITS, limits, running=running).accepted - 1
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


@pytest.mark.parametrize("dependence", ["independent", "nested", "apart"])
def test_stricter_limits_after_a_rejection_cost_no_promise_and_reach_further(
    dependence: str,
) -> None:
    assert len(LIMITS) == 4
    # Bad members everywhere: each could be accepted once those before it were rejected.
    true = np.array([0.0, 0.0501, 0.02, 0.0501, 0.0501, 0.01, 0.0501])
    generator = np.random.default_rng(2)
    draws = generator.random((DRAWS, UNITS, len(true) if dependence == "independent" else 1))
    shift = np.cumsum(true) - true if dependence == "apart" else 0.0
    excess = (draws + shift) % 1.0 < true
    plain, further = accepted(excess, False), accepted(excess, False, LIMITS)
    assert (further >= plain).all()
    wrong = np.mean(true[further] > RISK)
    delta = 1.0 - CONFIDENCE
    assert wrong <= delta + 3.0 * np.sqrt(delta / DRAWS)
    spent = stats.binom.cdf(LIMITS, UNITS, 0.0501).sum()
    assert wrong <= spent + 3.0 * np.sqrt(spent / DRAWS)
    if dependence == "independent":
        # A certificate of a good member, where the plain scan ends with full compute.
        second = stats.binom.cdf(LIMITS[1], UNITS, true[2])
        rescued = np.mean((plain == 0) & (further > 0))
        assert rescued > 0.9 * second


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


@pytest.fixture(scope="module")
def issued() -> Certificate:
    return certificate()


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
