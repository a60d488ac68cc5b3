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
def test_met_again_counts_the_rows_that_two_contexts_share(
    new: int, shared: int, seed: int
) -> None:
    rows = torch.randn(80, 3, generator=torch.Generator().manual_seed(seed))
    before, now = row_marks(rows[:40]), row_marks(rows[40 - shared : 40 + new])
    assert met_again(before, now) == shared
    assert met_again("", now) == 0


def test_every_tensor_of_a_row_counts_and_precision_does_not() -> None:
    one = {"state": torch.randn(4, 2), "goal": torch.randn(4, 3, 3)}
    other = {**one, "goal": torch.randn(4, 3, 3)}
    assert (
        met_again(row_marks(one), row_marks({key: part.double() for key, part in one.items()})) == 4
    )
    assert met_again(row_marks(one), row_marks(other)) == 0
    assert len(row_marks(one)) == 4 * DIGITS and row_marks(None) == ""


@pytest.mark.parametrize("kinds", [3, 50, 10_000])
def test_contexts_of_few_kinds_are_met_again_by_chance(kinds: int) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(kinds, (600, 1), generator=generator)
        assert met_again(row_marks(drawn[:400]), row_marks(drawn[400:])) == 0


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
    assert met_again(first.calibrated_on, row_marks(calls)) == 120
    assert met_again(first.family.tuned_on, row_marks(calls)) == first.counts["tune"]
    with pytest.raises(InputError, match=r"tuned on 30 of these 120 calls"):
        certificate(calls=calls, family=first.family)


def test_episodes_that_tuned_a_family_do_not_certify_it() -> None:
    episodes = muninn.Episodes(drive, 60)
    first = certificate(calls=episodes, family=None, risk=0.2, tolerance=0.4)
    with pytest.raises(InputError, match=r"of these 60 episodes.*Give a seed that tuning did not"):
        certificate(calls=episodes, family=first.family, risk=0.2, tolerance=0.4)
    again = certificate(calls=episodes, family=first.family, risk=0.2, tolerance=0.4, seed=1)
    assert again.family == first.family


def test_families_of_older_files_have_no_marks() -> None:
    data = SHORT_FAMILY.to_json()
    assert "tuned_on" not in data
    assert Family.from_json(data).tuned_on == ""
