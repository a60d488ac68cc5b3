"""Evidence as a bet: it errs as rarely as it says, whenever one looks, and is not asleep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from muninn.certify.betting import MeanEvidence, lower_limit, needed
from muninn.errors import InputError


def stopped(differences: np.ndarray, margin: float, level: float = 0.05, like: object = ()) -> int:
    """After how many differences in [-1, 1] a fall of ``margin`` is excluded; 0 if never."""
    evidence = MeanEvidence(margin - 1.0, margin + 1.0, like)  # type: ignore[arg-type]
    for seen, difference in enumerate(differences, 1):
        evidence.add([margin + difference])
        if evidence.e_value >= 1.0 / level:
            return seen
    return 0


@pytest.mark.parametrize(("margin", "fewest"), [(0.01, 299), (0.02, 149), (0.05, 59)])
def test_without_a_flip_it_takes_little_more_than_the_fewest_possible(
    margin: float, fewest: int
) -> None:
    """ln(1/level) / ln(1/(1 - margin)) is what a gambler needs who bets all from the start."""
    assert fewest == math.ceil(math.log(0.05) / math.log1p(-margin))
    taken = stopped(np.zeros(1000), margin)
    assert fewest <= taken < 1.2 * fewest
    assert taken == pytest.approx(needed(margin, 1.0, 0.05), rel=0.05)
    informed = stopped(np.zeros(1000), margin, like=[0.0] * 64)  # no flip in tuning episodes
    assert fewest <= informed < 1.1 * fewest


def flips(count: int, share: float, fall: float, seed: int) -> np.ndarray:
    """Differences -1, 0, 1 with a mean of ``-fall``."""
    chance = [(share + fall) / 2.0, 1.0 - share, (share - fall) / 2.0]
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], count, p=chance)


@pytest.mark.parametrize(("share", "margin"), [(0.05, 0.05), (0.2, 0.05), (0.02, 0.02)])
@pytest.mark.parametrize("informed", [False, True])
def test_a_fall_of_just_the_margin_is_rarely_excluded(
    share: float, margin: float, informed: bool
) -> None:
    """Looked at after every one of 400: in at most 5% of 300 runs, and three standard errors."""
    wrong = 0
    for seed in range(300):
        like = flips(64, share, margin, 10_000 + seed) if informed else ()
        wrong += stopped(flips(400, share, margin, seed), margin, like=like) > 0
    assert wrong / 300 <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 300)


def test_flips_in_both_directions_cost_what_was_announced() -> None:
    taken = [
        stopped(flips(6000, 0.05, 0.0, seed), 0.02, like=flips(64, 0.05, 0.0, 99 + seed))
        for seed in range(41)
    ]
    expected = needed(0.02, 1.0, 0.05, flips=0.05)
    assert expected is not None
    found = float(np.median([each or 6000 for each in taken]))
    assert 0.5 * expected < found < 2.0 * expected


def test_bets_know_nothing_of_what_is_to_come() -> None:
    """The wealth after a number of observations does not depend on later ones."""
    first, second = MeanEvidence(-0.9, 1.1), MeanEvidence(-0.9, 1.1)
    seen = flips(50, 0.2, 0.0, 1) + 0.1
    first.add(seen)
    second.add(seen[:20])
    early = second.log_e_value
    second.add(seen[20:])
    assert second.log_e_value == pytest.approx(first.log_e_value)
    assert early != second.log_e_value
    worst = MeanEvidence(-0.9, 1.1)
    worst.add([0.1] * 200)
    worst.add([-0.9])
    assert math.isfinite(worst.log_e_value)  # never all on one


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.91, 1.2])
def test_observations_out_of_range_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="outside"):
        MeanEvidence(-0.9, 1.1).add([bad])


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-1.0, 0.0), (math.nan, 1.0), (-math.inf, 1.0)])
def test_ranges_that_no_mean_can_be_tested_in_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="low < 0 < high"):
        MeanEvidence(*ends)


@pytest.mark.parametrize(("mean", "count"), [(0.95, 100), (0.5, 300), (0.9, 600)])
def test_a_lower_limit_is_below_the_mean_and_not_far(mean: float, count: int) -> None:
    generator, level = np.random.default_rng(0), 0.05
    limits = [
        lower_limit((generator.random(count) < mean).astype(float), 0.0, 1.0, level)
        for _ in range(400)
    ]
    assert np.mean(np.array(limits) > mean) <= level + 3.0 * math.sqrt(level * (1 - level) / 400)
    spread = math.sqrt(mean * (1.0 - mean) / count)
    assert np.median(limits) > mean - 5.0 * spread


def test_bets_of_a_lower_limit_do_not_know_when_one_stops() -> None:
    """Stopped where the limit looks best: above the mean in at most 5% of 300 runs of 120."""
    generator, mean, wrong = np.random.default_rng(1), 0.7, 0
    for _ in range(300):
        values = (generator.random(120) < mean).astype(float)
        wrong += any(
            lower_limit(values[:seen], 0.0, 1.0, 0.05) > mean for seen in range(10, 121, 5)
        )
    assert wrong / 300 <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 300)
    longer = lower_limit(values, 0.0, 1.0, 0.05)
    assert lower_limit(values[:60], 0.0, 1.0, 0.05) <= longer


def test_a_lower_limit_scales_with_its_range() -> None:
    values = np.random.default_rng(3).random(200)
    limit = lower_limit(values, 0.0, 1.0, 0.05)
    assert lower_limit(10.0 + 4.0 * values, 10.0, 14.0, 0.05) == pytest.approx(10.0 + 4.0 * limit)
    assert lower_limit([], -2.0, 1.0, 0.05) == -2.0


def test_what_cannot_be_proven_in_reasonable_time_is_none() -> None:
    assert needed(0.001, 1.0, 0.05, flips=0.5) is None
