"""The e-processes against closed forms: exact means by enumeration, false alarms, monotonicity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muninn.errors import InputError
from muninn.monitor.sequential import BLOCK, STAKES, Drift, RiskEvidence, log_e_value

Audits = list[tuple[int, bool]]
audits = st.lists(st.tuples(st.integers(0, 4 * BLOCK), st.booleans()), max_size=30)
risks = st.floats(0.01, 0.9)


def evidence(risk: float, seen: Audits) -> RiskEvidence:
    result = RiskEvidence(risk)
    for ordinal, violated in seen:
        result.add(ordinal, violated)
    return result


def direct(risk: float, seen: Audits) -> float:
    """The e-value as docs/monitor.md defines it: gambler by gambler, audit by audit."""
    last = max((ordinal // BLOCK for ordinal, _ in seen), default=-1)
    total = 1.0 / (last + 2)
    for start in range(last + 1):
        for ratio, stake in STAKES:
            wealth = stake / ((start + 1) * (start + 2))
            for ordinal, violated in seen:
                if ordinal // BLOCK >= start:
                    wealth *= (ratio if violated else 1.0) / (1.0 + (ratio - 1.0) * risk)
            total += wealth
    return total


def test_stakes_are_a_whole_and_bet_on_a_rise() -> None:
    assert sum(share for _, share in STAKES) == 1.0
    assert all(ratio > 1.0 for ratio, _ in STAKES)


@pytest.mark.parametrize("risk", [0.05, 0.3])
@pytest.mark.parametrize("ordinals", [range(8), [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK, 7 * BLOCK]])
def test_mean_at_the_boundary_is_exactly_one(risk: float, ordinals: list[int]) -> None:
    mean = 0.0
    for outcomes in itertools.product([False, True], repeat=len(ordinals)):
        chance = math.prod(risk if violated else 1.0 - risk for violated in outcomes)
        seen = list(zip(ordinals, outcomes, strict=True))
        mean += chance * math.exp(evidence(risk, seen).log_e_value)
    assert mean == pytest.approx(1.0, abs=1e-12)


@given(audits, risks, st.integers(0, 6 * BLOCK), st.floats(0.0, 1.0))
def test_one_more_audit_is_no_gain_on_average_below_the_risk(
    seen: Audits, risk: float, ordinal: int, share: float
) -> None:
    now = math.exp(evidence(risk, seen).log_e_value)
    good, bad = (
        math.exp(evidence(risk, [*seen, (ordinal, violated)]).log_e_value)
        for violated in (False, True)
    )
    rate = share * risk  # any rate up to the promised one, the past being whatever it was
    assert rate * bad + (1.0 - rate) * good <= now * (1.0 + 1e-9)
    assert risk * bad + (1.0 - risk) * good == pytest.approx(now, rel=1e-9)
    assert good < now * (1 + 1e-12) and bad > now * (1 - 1e-12)  # monotone in the outcome


@given(audits, risks)
def test_the_formula_is_the_definition(seen: Audits, risk: float) -> None:
    found = evidence(risk, seen)
    assert math.exp(found.log_e_value) == pytest.approx(direct(risk, seen), rel=1e-9)
    assert (found.audits, found.violations) == (len(seen), sum(bad for _, bad in seen))


@given(audits, risks, st.randoms(use_true_random=False))
def test_order_does_not_matter(seen: Audits, risk: float, random: object) -> None:
    mixed = list(seen)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert evidence(risk, mixed).log_e_value == evidence(risk, seen).log_e_value


def test_streams_are_broadcast() -> None:
    generator = np.random.default_rng(0)
    blocks = np.array([0, 2, 5])
    trials = generator.integers(1, 9, (4, 3))
    violations = generator.integers(0, trials + 1)
    rows = [log_e_value(t, v, blocks, 0.1) for t, v in zip(trials, violations, strict=True)]
    np.testing.assert_allclose(log_e_value(trials, violations, blocks, 0.1), rows, rtol=1e-14)


def test_no_overflow_and_no_underflow() -> None:
    million = np.array([1_000_000])
    assert np.isfinite(log_e_value(million, million, np.array([0]), 0.05))
    # What waits in the purse stays: a spotless past costs at most the opened bets.
    assert log_e_value(million, 0 * million, np.array([0]), 0.05) == pytest.approx(math.log(0.5))


def test_a_corrupt_ordinal_costs_no_memory() -> None:
    assert math.isfinite(evidence(0.05, [(0, True), (10**15, True)]).log_e_value)


def test_false_alarms_stay_below_the_level_at_the_boundary() -> None:
    from muninn_bench.studies.monitor.streams import NEVER, first_alarms

    generator = np.random.default_rng(5)
    violated = generator.random((2000, 600)) < 0.05
    share = np.mean(first_alarms(violated, 0.05, 0.05) != NEVER)
    assert 0.005 < share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_streams_alarm_when_the_evidence_class_does() -> None:
    from muninn_bench.studies.monitor.streams import NEVER, first_alarms

    violated = np.random.default_rng(6).random((30, 3 * BLOCK)) < 0.12
    found = first_alarms(violated, 0.05, 0.05)
    assert NEVER in found and (found != NEVER).any()
    for stream, at in zip(violated, found, strict=True):
        own, alarm = RiskEvidence(0.05), NEVER
        for ordinal, bad in enumerate(stream.tolist()):
            own.add(ordinal, bad)
            if alarm == NEVER and own.log_e_value >= math.log(20.0):
                alarm = ordinal + 1
        assert alarm == at


def test_a_good_past_does_not_hide_a_change() -> None:
    """From 2,000 spotless audits on, a plain likelihood ratio would need thousands more."""
    own = RiskEvidence(0.05)
    for ordinal in range(2000):
        own.add(ordinal, False)
    for extra in range(1, 200):
        own.add(1999 + extra, extra % 5 == 0)  # a rate of 0.2
        if own.log_e_value >= math.log(20.0):
            break
    assert 20 < extra < 150


# -- drift -----------------------------------------------------------------------------------


def test_ranks_are_uniform_and_the_wealth_fair() -> None:
    """Exact over ranks without ties: one step's mean wealth over a uniform rank is the old one."""
    drift = Drift([], seed=0)
    for value in np.random.default_rng(1).normal(size=40):
        drift.add(float(value))
    before = drift._wealth.copy()
    total = before.sum()
    grid = (np.arange(10_000) + 0.5) / 10_000
    from muninn.monitor.sequential import _BETS, _JUMPS

    moved = (1 - _JUMPS) * before + _JUMPS * before.sum(axis=1, keepdims=True) / len(_BETS)
    mean = np.mean([(moved * (1 + _BETS * (u - 0.5))).sum() for u in grid])
    assert mean == pytest.approx(total, rel=1e-9)


def test_ranks_of_exchangeable_values_are_uniform() -> None:
    from scipy import stats

    generator = np.random.default_rng(2)
    values = generator.integers(0, 5, 3000).astype(float)  # many ties
    drift = Drift(values[:200], seed=3)
    ranks = [drift.add(value) for value in values[200:].tolist()]
    assert stats.kstest(ranks, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) < 0.06


def test_warnings_without_drift_stay_below_the_level() -> None:
    generator = np.random.default_rng(7)
    warned = 0
    for seed in range(300):
        drift = Drift(generator.normal(size=50), seed)
        peak = 0.0
        for value in generator.normal(size=150).tolist():
            drift.add(value)
            peak = max(peak, drift.e_value)
        warned += peak >= 20.0
    assert warned <= 300 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / 300))


@pytest.mark.parametrize("shift", [3.0, -3.0, math.inf, math.nan])
def test_drift_is_seen_in_both_directions_and_stays_finite(shift: float) -> None:
    generator = np.random.default_rng(8)
    drift = Drift(generator.normal(size=300), seed=1)
    for value in generator.normal(size=100).tolist():
        drift.add(value)
    seen = 0
    while drift.e_value < 20.0:
        drift.add(float(generator.normal()) + shift)
        seen += 1
    assert seen < 40
    for _ in range(500):
        drift.add(shift)
    assert math.isfinite(drift.e_value)


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan])
def test_probabilities_are_checked(bad: float) -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        RiskEvidence(bad)
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        RiskEvidence(0.05, bad)


def test_ordinals_count_from_zero() -> None:
    with pytest.raises(InputError, match="numbered from 0"):
        RiskEvidence(0.05).add(-1, True)


@settings(max_examples=20)
@given(st.floats(0.01, 0.5))
def test_no_audit_is_no_evidence(risk: float) -> None:
    assert RiskEvidence(risk).log_e_value == 0.0
