"""Is a mean above a limit? Evidence as a fair bet, which may be looked at after every observation.

A gambler bets on bounded observations x, independent, with mean at most 0 under the hypothesis. Her
wealth ``prod (1 + bet_i x_i)``, each bet from what came before, cannot be expected to grow then: by
Ville's inequality it *ever* reaches ``1 / level`` with probability at most ``level``. So one may
stop as soon as it does, and go on where it has not yet. docs/certificate.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray

CAUTION = 0.1
"""Worst observations that are counted beforehand: nobody bets all on having seen none."""

BOLD = 0.9
"""Of the range of scores over a bet on a single one, where many bet alike."""

HORIZONS = (64, 256, 1024, 4096, 16384)
"""Numbers of scores that bets on a mean are made for."""

NEWTON = 30
MOST = 100_000
"""Observations beyond which :func:`needed` gives up."""


class MeanEvidence:
    """Evidence that the mean of observations in ``[low, high]`` is above 0, ``low < 0 < high``.

    The bet is the one that would have been best so far, one worst observation counted for a tenth;
    ``like`` are differences of their kind seen elsewhere, which count half upwards, half downwards.

    >>> evidence = MeanEvidence(-0.99, 1.01)
    >>> evidence.add(0.01 for _ in range(400))
    >>> evidence.e_value > 20.0
    True
    """

    def __init__(self, low: float, high: float, like: Iterable[float] = ()) -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < 0.0 < high):
            raise InputError(f"observations lie between low < 0 < high, got {low} and {high}")
        self.low, self.high = float(low), float(high)
        self.log_e_value = self.highest = 0.0  # now, and at its best
        self._seen: dict[float, float] = {}  # how often
        self._bet, middle = 0.0, (self.low + self.high) / 2.0
        for difference in like:
            for x in (middle + difference, middle - difference):
                self._count(min(max(x, self.low), self.high), 0.5)
        self._bet = self._best()

    @property
    def e_value(self) -> float:
        """The wealth of a gambler who began with 1, at its best."""
        return math.exp(min(self.highest, 700.0))

    def add(self, observations: Iterable[float]) -> None:
        """Bet on observations, one after the other.

        Raises:
            InputError: one is not finite, or out of range.
        """
        rounding = 1e-9 * (self.high - self.low)
        for x in map(float, observations):
            if not self.low - rounding <= x <= self.high + rounding:  # NaN, too
                raise InputError(f"an observation is {x}, outside of {self.low} to {self.high}")
            x = min(max(x, self.low), self.high)
            self.log_e_value += math.log1p(self._bet * x)
            self.highest = max(self.highest, self.log_e_value)
            self._count(x, 1.0)
            self._bet = self._best()

    def _count(self, x: float, times: float) -> None:
        self._seen[x] = self._seen.get(x, 0.0) + times

    def _best(self) -> float:
        """The bet that would have been best so far: where the derivative of the wealth is 0."""
        values = np.array([self.low, *self._seen])
        counts = np.array([CAUTION, *self._seen.values()])
        if (counts @ values) <= 0.0:
            return 0.0
        lowest, highest, bet = 0.0, 1.0 / -self.low, self._bet
        for _ in range(NEWTON):
            terms = values / (1.0 + bet * values)
            slope = float(counts @ terms)
            lowest, highest = (bet, highest) if slope > 0.0 else (lowest, bet)
            step = slope / float(counts @ terms**2)
            if abs(step) < 1e-9 / -self.low:
                break
            bet += step
            if not lowest < bet < highest:
                bet = (lowest + highest) / 2.0
        return bet


def lower_limit(
    values: Sequence[float] | FloatArray, low: float, high: float, level: float
) -> float:
    """A number that the mean of scores in ``[low, high]`` is above, but with probability ``level``.

    For every number m some gamblers bet that the mean is above it, each as if for one of
    :data:`HORIZONS`: no bet knows when the scores end, so that they may end, or go on, at any time.
    The bets are the same for every m, so that whoever bets on less is never poorer: below the limit
    every m is refuted, and the true mean is not.

    >>> lower_limit([1.0] * 100, 0.0, 1.0, 0.05) > 0.95
    True
    """
    known = np.asarray(values, dtype=np.float64)
    count, spread = len(known), high - low
    if not count:
        return low
    # Mean and variance before each score; a quarter of the range squared is the most there is.
    before = np.arange(count)
    mean = (np.cumsum(known) - known + 0.5 * (low + high)) / (before + 1)
    squares = np.concatenate([[0.0], np.cumsum((known - mean) ** 2)[:-1]])
    variance = (squares + 0.25 * spread**2) / (before + 1)
    bets = np.sqrt(-2.0 * np.log(level) / (np.array(HORIZONS)[:, None] * variance))
    bets = np.minimum(bets, BOLD / spread)
    refuted = math.log(len(HORIZONS)) - math.log(level)
    least, most = low, float(known.max())
    for _ in range(40):
        middle = (least + most) / 2.0
        wealth = np.cumsum(np.log1p(bets * (known - middle)), axis=1)
        together = np.logaddexp.reduce(wealth, axis=0)
        least, most = (middle, most) if together.max() >= refuted else (least, middle)
    return least


def needed(margin: float, spread: float, level: float, flips: float = 0.0) -> int | None:
    """About how many paired episodes prove that a mean fell by at most ``margin``, of scores that
    differ by at most ``spread``, if a share ``flips`` of them differs by that, half of it upwards.

    None where more than :data:`MOST` are needed.

    >>> needed(0.01, 1.0, 0.05), needed(0.01, 1.0, 0.05, flips=0.05)
    (340, 3460)
    """
    wanted, bets = -math.log(level), np.linspace(0.0, 1.0, 2001)[:-1] / (spread - margin)
    gain = (1.0 - flips) * np.log1p(bets * margin)
    for sign in (1.0, -1.0):
        gain += 0.5 * flips * np.log1p(bets * (margin + sign * spread))
    # What caution takes: the first bets are small.
    episodes = (wanted + CAUTION * 4.0) / float(gain.max())
    return None if episodes > MOST else int(math.ceil(episodes / 10.0) * 10)
