"""The order statistics behind the promise, against sums by hand and against simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from certify_cases import uniform_tolerated
from muninn.certify.risk import (
    Scanned,
    choose_member,
    order_statistic,
    require_risk,
    require_units,
    scan_members,
    units_needed,
)
from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray

RISKS = st.floats(0.005, 0.6)
CONFIDENCES = st.floats(0.5, 0.995)


def binomial_cdf(successes: int, trials: int, probability: float) -> float:
    """P(Binomial(trials, probability) <= successes), summed term by term."""
    return math.fsum(
        math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k)
        for k in range(successes + 1)
    )


@given(st.integers(1, 300), RISKS, CONFIDENCES)
def test_the_confident_rank_is_the_largest_whose_binomial_tail_stays_below_delta(
    units: int, risk: float, confidence: float
) -> None:
    rank, delta = order_statistic(units, risk, confidence), 1.0 - confidence
    here, beyond = binomial_cdf(rank - 1, units, risk), binomial_cdf(rank, units, risk)
    assume(min(abs(here - delta), abs(beyond - delta)) > 1e-9)  # rounding decides a tie
    assert rank == 0 or here <= delta
    assert rank == units or beyond > delta


@given(st.integers(1, 5000), st.integers(1, 999))
def test_the_marginal_rank_is_the_floor_in_exact_arithmetic(units: int, thousandths: int) -> None:
    assert order_statistic(units, thousandths / 1000, None) == thousandths * (units + 1) // 1000


@given(RISKS, st.one_of(st.none(), CONFIDENCES))
def test_the_fewest_units_are_exactly_enough(risk: float, confidence: float | None) -> None:
    needed = units_needed(risk, confidence)
    assume(
        confidence is None
        or min(abs((1 - risk) ** n - 1 + confidence) for n in (needed - 1, needed)) > 1e-9
    )
    assert order_statistic(needed, risk, confidence) == 1
    assert needed == 1 or order_statistic(needed - 1, risk, confidence) == 0


def test_the_figures_quoted_in_the_documents() -> None:
    assert order_statistic(200, 0.05, 0.95) == 5
    assert order_statistic(400, 0.05, 0.95) == 13
    assert (units_needed(0.05, 0.95), order_statistic(58, 0.05, 0.95)) == (59, 0)
    assert (units_needed(0.05, None), order_statistic(19, 0.05, None)) == (19, 1)
    assert [units_needed(risk, 0.95) for risk in (0.02, 0.1, 0.2)] == [149, 29, 14]


@given(st.integers(1, 300), RISKS, CONFIDENCES)
def test_confidence_never_allows_more_than_the_marginal_rank_plus_one(
    units: int, risk: float, confidence: float
) -> None:
    # The median of a binomial is within one of its mean, so a confident rank is at most that.
    assert order_statistic(units, risk, confidence) <= risk * units + 1


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf, -math.inf])
def test_risk_and_confidence_are_probabilities(bad: float) -> None:
    with pytest.raises(InputError, match=r"risk must lie strictly between 0 and 1"):
        require_risk(bad, 0.95)
    with pytest.raises(InputError, match="None for the marginal"):
        require_risk(0.05, bad)


def test_too_few_units_are_refused_with_the_number_needed() -> None:
    with pytest.raises(CalibrationError, match=r"58 calls cannot support risk 0.05.*at least 59"):
        require_units(58, 0.05, 0.95, "calls")
    with pytest.raises(CalibrationError, match=r"marginal.*at least 19"):
        require_units(18, 0.05, None, "calls")
    assert require_units(59, 0.05, 0.95, "calls") == 1


# -- the scan --------------------------------------------------------------------------------

MATRICES = arrays.arrays(
    np.float64,
    st.tuples(st.integers(20, 60), st.integers(1, 7)),
    elements=st.sampled_from([0.2, 0.9, 1.0, 1.1, 5.0]),
)


@given(MATRICES, st.sampled_from([0.05, 0.1, 0.3]))
def test_a_marginal_scan_chooses_the_order_statistic_of_what_units_tolerate(
    excess: FloatArray, risk: float
) -> None:
    excess[:, 0] = 0.0
    rank = order_statistic(len(excess), risk, None)
    assume(rank > 0)
    by_hand = []
    for row in excess:
        member = 0
        while member + 1 < len(row) and row[member + 1] <= 1.0:
            member += 1
        by_hand.append(member)
    assert choose_member(excess, risk, None) == sorted(by_hand)[rank - 1]


@given(MATRICES, st.sampled_from([0.05, 0.1, 0.3]))
def test_a_confident_scan_ends_before_the_first_member_that_fails_by_itself(
    excess: FloatArray, risk: float
) -> None:
    excess[:, 0] = 0.0
    rank = order_statistic(len(excess), risk, 0.6)
    assume(rank > 0)
    member = 0
    while member + 1 < excess.shape[1] and (excess[:, member + 1] > 1.0).sum() < rank:
        member += 1
    assert choose_member(excess, risk, 0.6) == member


@given(MATRICES, st.integers(1, 25), st.integers(0, 20), st.booleans())
def test_chunks_of_any_size_come_to_the_same_choice(
    excess: FloatArray, chunk: int, allowed: int, running: bool
) -> None:
    columns = ([column] for column in excess.T)
    whole = scan_members(columns, len(excess), allowed, running=running)
    pieces = (
        [column[at : at + chunk] for at in range(0, len(column), chunk)] for column in excess.T
    )
    found = scan_members(pieces, len(excess), allowed, running=running)
    assert found.accepted == whole.accepted
    for counts, partial in ((whole.own, found.own), (whole.running, found.running)):
        assert partial[: found.accepted] == counts[: found.accepted]
    rejected = (found.running if running else found.own)[found.accepted :]
    assert all(count > allowed for count in rejected)
    assert found.choosable(allowed) == whole.choosable(allowed)


@pytest.mark.parametrize("running", [False, True])
def test_the_scan_measures_no_more_than_it_needs(running: bool) -> None:
    seen: list[tuple[int, int]] = []

    def column(member: int) -> Iterator[FloatArray]:
        for chunk in range(4):
            seen.append((member, chunk))
            yield np.full(10, 2.0 if member == 2 else 0.5)

    found = scan_members(map(column, range(5)), 40, 12, running=running)
    assert found == Scanned(2, [0, 0, 20], [0, 0, 20])
    assert seen[-2:] == [(2, 0), (2, 1)]  # two chunks are enough to reject, and no member follows


def test_even_member_zero_is_refused_if_it_violates_too_often() -> None:
    excess = np.full((100, 3), 0.5)
    excess[:6] = 1.5
    with pytest.raises(CalibrationError, match="full compute itself exceeds the tolerance"):
        choose_member(excess, 0.05, None)
    assert choose_member(excess, 0.1, None) == 2


# -- simulation ------------------------------------------------------------------------------

MEMBERS = 1000  # so many that ties hardly matter and the promise is met to its last digit


@pytest.mark.parametrize(("units", "risk"), [(40, 0.1), (100, 0.05), (400, 0.02)])
def test_marginal_risk_follows_its_beta_law_on_both_sides(units: int, risk: float) -> None:
    generator = np.random.default_rng(units)
    rank = order_statistic(units, risk, None)
    fresh = 200
    law = stats.betabinom(fresh, rank, units + 1 - rank)
    violations = np.array(
        [
            generator.binomial(
                fresh,
                choose_member(uniform_tolerated(units, MEMBERS, generator), risk, None) / MEMBERS,
            )
            for _ in range(400)
        ]
    )
    error = law.std() / np.sqrt(len(violations))
    assert abs(violations.mean() - fresh * rank / (units + 1)) < 4 * error
    assert violations.mean() <= fresh * risk + 3 * error
    # The whole predictive law, not its mean alone: quartiles hold what they should.
    for quantile in (0.25, 0.5, 0.75):
        edge = law.ppf(quantile)
        expected, spread = law.cdf(edge), math.sqrt(0.25 / len(violations))
        assert abs(np.mean(violations <= edge) - expected) < 4.5 * spread


@pytest.mark.parametrize(("units", "risk"), [(59, 0.05), (200, 0.05), (100, 0.1)])
def test_confident_risk_exceeds_alpha_as_often_as_the_binomial_tail_says(
    units: int, risk: float
) -> None:
    generator = np.random.default_rng(units)
    rank = order_statistic(units, risk, 0.95)
    exact = binomial_cdf(rank - 1, units, risk)
    count = 1000
    exceeds = np.mean(
        [
            choose_member(uniform_tolerated(units, 400, generator), risk, 0.95) / 400 > risk
            for _ in range(count)
        ]
    )
    assert exact <= 0.05
    assert abs(exceeds - exact) < 4 * math.sqrt(exact * (1 - exact) / count) + 0.005


@given(MATRICES)
def test_a_unit_that_came_back_still_counts(excess: FloatArray) -> None:
    running = np.maximum.accumulate(excess, axis=1)
    columns = ([column] for column in excess.T)
    found = scan_members(columns, len(excess), len(excess), running=True)
    np.testing.assert_array_equal(found.running, np.count_nonzero(running > 1.0, axis=0))
    np.testing.assert_array_equal(found.own, np.count_nonzero(excess > 1.0, axis=0))


def bisect_member(column: Callable[[int], FloatArray], members: int, allowed: int) -> int:
    """The tempting mistake: halve until a member within the count meets one beyond it."""
    low, high = 0, members
    while high - low > 1:
        middle = (low + high) // 2
        good = np.count_nonzero(column(middle) > 1.0) <= allowed
        low, high = (middle, high) if good else (low, middle)
    return low


def test_where_units_reenter_bisection_breaks_the_promise_and_the_scan_keeps_it() -> None:
    # After member 0 every member violates on 12% of units, each time on others: units come back.
    # Halving looks at a dozen members and settles on one that was lucky on the calibration units.
    generator = np.random.default_rng(0)
    units, risk, true_risk, members = 100, 0.1, 0.12, 4097
    allowed = order_statistic(units, risk, None) - 1
    bisected, scanned = [], []
    for _ in range(400):
        seed = int(generator.integers(2**32))

        def column(member: int, seed: int = seed) -> FloatArray:
            draws = np.random.default_rng([seed, member]).random(units)
            return np.where((draws < true_risk) & (member > 0), 2.0, 0.5)

        bisected.append(true_risk * (bisect_member(column, members, allowed) > 0))
        columns = ([column(k)] for k in range(members))
        found = scan_members(columns, units, allowed, running=True)
        scanned.append(true_risk * (found.accepted > 1))
    error = np.std(bisected) / math.sqrt(len(bisected))
    assert np.mean(bisected) > risk + 3 * error
    assert np.mean(scanned) <= risk
