"""Calls that were used before are known again: by every row, in any precision, among few kinds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import muninn
from certify_cases import SHORT_FAMILY, TOLERANCE, certificate, contexts, drive, planner
from muninn.errors import InputError
from muninn.identity.rows import DIGITS, met_again, row_marks
from muninn.programs.plan import Family


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**20))
def test_rows_that_two_contexts_share_are_counted(new: int, shared: int, seed: int) -> None:
    rows = torch.randn(80, 3, generator=torch.Generator().manual_seed(seed))
    now = rows[40 - shared : 40 + new]
    if len(now) > 1:
        assert met_again(row_marks(rows[:40]), now) == shared
    assert met_again("", now) == 0


def test_every_tensor_of_a_row_counts_and_precision_and_order_do_not() -> None:
    one = {"state": torch.randn(4, 2), "goal": torch.randn(4, 3, 3), "label": torch.arange(4)}
    other = {**one, "goal": torch.randn(4, 3, 3)}
    same = {"label": one["label"].int(), "goal": one["goal"].double(), "state": one["state"]}
    assert met_again(row_marks(one), same) == 4
    assert met_again(row_marks(one), other) == 0
    assert len(row_marks(one)) == 4 * DIGITS and row_marks(None) == ""


def test_numbers_of_calls_empty_rows_and_many_blocks_have_marks() -> None:
    kinds = {"flag": torch.ones(200, dtype=torch.bool), "none": torch.zeros(200, 0)}
    marks = row_marks({**kinds, "number": torch.arange(200)})
    assert len({marks[at : at + DIGITS] for at in range(0, len(marks), DIGITS)}) == 200
    assert len(set(row_marks(kinds)[at : at + DIGITS] for at in range(0, 3200, DIGITS))) == 1


@pytest.mark.parametrize("kinds", [3, 50, 10_000, 160_000, 1_000_000])
@pytest.mark.parametrize(("earlier", "new"), [(400, 200), (400, 400), (64, 1000)])
@pytest.mark.parametrize("fraction", [1.0, 0.37])
def test_contexts_of_few_kinds_are_met_again_by_chance(
    kinds: int, earlier: int, new: int, fraction: float
) -> None:
    side = max(2, round(kinds**0.25))
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        drawn = fraction * torch.randint(side, (earlier + new, 4), generator=generator)
        assert met_again(row_marks(drawn[:earlier]), drawn[earlier:]) == 0


def test_one_pose_that_is_always_the_same_hides_nothing() -> None:
    rows = torch.randn(400, 3)
    rows[::3] = rows[0]
    assert met_again(row_marks(rows), rows) > 250
    fresh = torch.randn(400, 3)
    fresh[::3] = rows[0]
    assert met_again(row_marks(rows), fresh) == 0


@pytest.mark.parametrize("count", [104, 130, 172, 400])
def test_whole_numbers_that_never_recur_are_known_again_among_few_calls(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(256, (2 * count, 3, 6, 6), generator=generator, dtype=torch.uint8)
    tuned = images[: max(16, round(0.25 * count))]
    assert met_again(row_marks(tuned), images[:count]) == len(tuned)
    assert met_again(row_marks(tuned), images[count:]) == 0


@pytest.mark.parametrize("times", [2, 4])
def test_contexts_that_were_tuned_on_with_several_noises_are_known_again(times: int) -> None:
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(times))
    marks = row_marks(rows[:100].repeat_interleave(times, dim=0))
    assert met_again(marks, rows[:100]) == 100
    assert met_again(marks, rows) == 100
    assert met_again(marks, rows[100:]) == 0
    assert met_again(marks, rows[100:].repeat_interleave(times, dim=0)) == 0


def test_a_few_rows_are_no_evidence() -> None:
    for earlier in range(1, 4):
        for now in range(1, 4):
            assert met_again(row_marks(torch.arange(earlier)), torch.arange(now)) == 0


def test_a_zero_has_one_mark() -> None:
    rows = torch.tensor([[0.0, 0.5], [0.1, 0.2]])
    assert row_marks(rows) == row_marks(torch.where(rows == 0.0, -0.0, rows))


def test_a_common_pose_that_was_met_once_before_is_no_evidence() -> None:
    rows = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    pose, marks = rows[0].clone(), row_marks(rows[:100])
    rows[[150, 200, 300]] = pose
    assert met_again(marks, rows[100:]) == 0
    rows[[150, 200]] = torch.randn(2, 3)
    assert met_again(marks, rows[100:]) == 1


def test_a_family_is_not_certified_on_the_calls_it_was_tuned_on() -> None:
    calls = contexts(40, 5)
    family = muninn.tune(planner(), calls, tolerance=TOLERANCE, progress=False)
    read = Family.from_json(family.to_json())
    assert read == family and read.tuned_on == family.tuned_on == row_marks(calls)
    mixed = torch.cat([contexts(80, 6), calls[7:10]])
    for each in (family, read):
        with pytest.raises(InputError, match=r"tuned on 3 of these 83 calls.*Give contexts that"):
            certificate(calls=mixed, family=each)
    assert certificate(calls=contexts(80, 6), family=read).family.tuned_on == family.tuned_on


def test_the_family_of_a_certificate_needs_new_calls_too() -> None:
    calls = contexts(120, 7)
    first = certificate(calls=calls, family=None)
    assert met_again(first.calibrated_on, calls) == 120
    assert met_again(first.family.tuned_on, calls) == first.counts["tune"]
    with pytest.raises(InputError, match=r"tuned on 30 of these 120 calls"):
        certificate(calls=calls, family=first.family)


def test_the_calls_that_chose_a_family_do_not_judge_its_certificate() -> None:
    calls = contexts(40, 5)
    family = muninn.tune(planner(), calls, tolerance=TOLERANCE, progress=False)
    issued = certificate(calls=contexts(80, 6), family=family)
    with pytest.raises(InputError, match="40 of these contexts were calibrated or tuned on"):
        muninn.evaluate(planner(), issued, torch.cat([contexts(40, 8), calls]), progress=False)


def test_episodes_that_tuned_a_family_do_not_certify_it() -> None:
    episodes = muninn.Episodes(drive, 60)
    first = certificate(calls=episodes, family=None, risk=0.2, tolerance=0.4)
    with pytest.raises(InputError, match=r"of these 60 episodes.*Give a seed that tuning did not"):
        certificate(calls=episodes, family=first.family, risk=0.2, tolerance=0.4)
    again = certificate(calls=episodes, family=first.family, risk=0.2, tolerance=0.4, seed=1)
    assert again.family == first.family
    with pytest.raises(
        InputError, match=r"\d+ of these episodes chose .* family: seed 0 is theirs"
    ):
        muninn.evaluate(planner(), again, muninn.Episodes(drive, 30), seed=0, progress=False)
    judged = muninn.evaluate(planner(), again, muninn.Episodes(drive, 30), seed=2, progress=False)
    assert judged.units == 30


def test_families_of_older_files_have_no_marks() -> None:
    data = SHORT_FAMILY.to_json()
    assert "tuned_on" not in data
    assert Family.from_json(data).tuned_on == ""
