"""Choices and statistics of the ablation study, against hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ablation_cases import COUNTS, SCALES, STEPS, difficulty, make_cell, pooled_only, write_folder
from muninn.certify.risk import choose_member
from muninn_bench.studies.ablation import choices, tables
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Raw


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    return Raw(write_folder(tmp_path_factory.mktemp("raw")))


# -- choices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["static-0.05", "fewsteps", "unipc"])
@pytest.mark.parametrize("risk", [0.05, 0.2])
def test_certified_member_is_that_of_choose_member(raw: Raw, method: str, risk: float) -> None:
    hard = difficulty(CALIBRATE)
    excess = [np.zeros(len(hard)), *(SCALES[method] / count**2 * hard / 0.05 for count in COUNTS)]
    expected = choose_member(np.stack(excess, axis=1), risk, 0.95) - 1
    choice = choices.certified(raw, method, 0.05, risk)
    assert choice.place == expected
    assert choice.test is not None and choice.test.stream == TEST
    spent = STEPS if expected < 0 else COUNTS[expected]
    assert (choice.test.evaluations == spent).all()


def test_choices_span_full_compute_and_real_members(raw: Raw) -> None:
    assert choices.certified(raw, "fewsteps", 0.002, 0.05).place == -1
    assert choices.certified(raw, "static-0.05", 0.05, 0.05).place > 0


def test_too_few_calls_are_said_not_raised(raw: Raw) -> None:
    choice = choices.certified(raw, "static-0.05", 0.05, 0.05, calls=58)
    assert (choice.test, choice.why) == (None, choices.TOO_FEW)
    assert choices.certified(raw, "static-0.05", 0.05, 0.05, calls=59).test is not None
    assert choices.certified(raw, "dpmsolver", 0.05, 0.05).why == choices.NOT_MEASURED


def test_heuristic_takes_the_most_aggressive_member_within_the_share(raw: Raw) -> None:
    hard = difficulty(CALIBRATE)[:100]
    shares = [(30.0 / count**2 * hard > 0.05).mean() for count in COUNTS]
    for risk in (0.05, 0.2, 0.9):
        kept = [place for place, share in enumerate(shares) if share <= risk]
        assert choices.heuristic(raw, "probethresh", 0.05, risk).place == max(kept, default=-1)


def test_neighbours_stop_at_the_ends_of_a_family(raw: Raw) -> None:
    family = raw.family("static-0.05", CALIBRATE)
    last = choices.Choice(len(family) - 1, family[-1], None)
    assert choices.neighbour(raw, "static-0.05", last, 1) is None
    first = choices.Choice(0, family[0], None)
    before = choices.neighbour(raw, "static-0.05", first, -1)
    assert before is not None and before.method == "full"
    after = choices.neighbour(raw, "static-0.05", first, 1)
    assert after is not None and after.order == 1


# -- statistics ------------------------------------------------------------------------------


def test_mace_is_two_sided_and_excess_one_sided() -> None:
    gaps = np.subtract([0.0, 0.08, 0.10, 0.15], [0.01, 0.05, 0.10, 0.20])
    mace, excess = tables.calibration_error(gaps)
    assert mace == pytest.approx((0.01 + 0.03 + 0.0 + 0.05) / 4)
    assert excess == pytest.approx(0.03 / 4)


def test_pooled_correlation_can_be_high_where_the_score_knows_nothing() -> None:
    pooled, within = tables.probe_correlations(pooled_only(500, 0))
    assert pooled > 0.95
    assert abs(np.median(within)) < 0.03 and np.abs(within).max() < 0.2


def test_bound_covers_exchangeable_calls_on_both_sides() -> None:
    """Mean coverage over calibrations lies in [1 - risk, 1 - risk + 1/(n + 1)], n = 100."""
    random = np.random.default_rng(1)
    covered = []
    for _ in range(300):
        truth = random.lognormal(size=400)
        estimate = truth * random.lognormal(0.0, 0.4, 400)
        cell = make_cell(("a", 0, {}, CALIBRATE), truth[:200], 1, estimate=estimate[:200])
        bound = choices.call_bound(cell, 0.1)
        assert bound is not None
        covered.append((truth[200:] <= bound(estimate[200:])).mean())
    error = 3 * np.std(covered) / np.sqrt(len(covered))
    assert 0.9 - error <= np.mean(covered) <= 0.9 + 1 / 101 + error


def test_bound_needs_enough_calls() -> None:
    name = ("a", 0, {}, CALIBRATE)
    few, enough = (make_cell(name, np.arange(calls), 1) for calls in (36.0, 38.0))
    assert choices.call_bound(few, 0.05) is None  # half is 18, 19 are needed
    assert choices.call_bound(enough, 0.05) is not None
