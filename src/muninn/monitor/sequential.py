"""Sequential tests that may be looked at after every observation: evidence as a fair bet.

Each test keeps the wealth of a gambler who starts with 1 and cannot expect to gain while the null
hypothesis holds. By Ville's inequality the wealth then *ever* reaches ``1 / level`` with
probability at most ``level``, however often one looks. docs/monitor.md has the proofs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from muninn.errors import InputError
from muninn.model.schedule import FloatArray

STAKES: tuple[tuple[float, float], ...] = ((1.25, 0.25), (2.0, 0.5), (8.0, 0.25))
"""(odds ratio, share of the stake): a creeping rise, about twice the risk, a gross failure."""

BLOCK = 50
"""Audits after which a new bet is opened, so that a long good past cannot hide a change."""

_BETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_JUMPS = np.array([[1e-2], [1e-3], [1e-4]])


def log_e_value(
    trials: npt.NDArray[np.int64],
    violations: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    risk: float,
) -> FloatArray:
    """Log e-value, (...,), against "each audit violates with probability at most ``risk``".

    A bet with odds ratio c multiplies its stake by ``c^x / (1 + (c - 1) risk)`` at an audit with
    outcome x in {0, 1}; that has mean at most 1 for every violation rate up to ``risk``. One
    gambler starts at each block j with the share ``1 / ((j + 1)(j + 2))`` and bets on every audit
    of block j or later, divided among :data:`STAKES`; what starts later is still in the purse. The
    result depends on counts only, not on the order in which audits came in.

    Args:
        trials, violations: audits and violations per block that holds any, (..., blocks).
        blocks: numbers of these blocks, increasing, (blocks,).
        risk: promised violation rate.
    """
    # Gamblers who start after one occupied block and up to the next have seen the same audits.
    ends = np.concatenate([[1.0], 1.0 / (blocks + 2.0)])
    share = np.log(ends[:-1] - ends[1:])[:, None]
    seen = np.flip(np.cumsum(np.flip(trials, -1), -1), -1)[..., None]
    bad = np.flip(np.cumsum(np.flip(violations, -1), -1), -1)[..., None]
    ratio, stake = np.array(STAKES).T
    wealth = share + np.log(stake) + bad * np.log(ratio) - seen * np.log1p((ratio - 1.0) * risk)
    purse = np.full((*wealth.shape[:-2], 1), math.log(ends[-1]))
    everything = np.concatenate([wealth.reshape(*wealth.shape[:-2], -1), purse], axis=-1)
    return np.asarray(logsumexp(everything, axis=-1), dtype=np.float64)


class RiskEvidence:
    """Evidence that the violation rate is above the promised risk, from audits in any order.

    While the promise is kept, the probability of ever raising an alarm is at most ``level``.

    >>> evidence = RiskEvidence(0.05)
    >>> evidence.add(0, True)
    >>> round(math.exp(evidence.log_e_value), 3)  # half of the stake waits for later blocks
    1.871
    """

    def __init__(self, risk: float, level: float = 0.05) -> None:
        if not (0.0 < risk < 1.0 and 0.0 < level < 1.0):
            raise InputError(
                "risk and level (0.05 is usual for both) lie strictly between 0 and 1, got "
                f"{risk} and {level}"
            )
        self.risk, self.level = float(risk), float(level)
        self.audits = self.violations = 0
        self._counts: dict[int, list[int]] = {}

    def add(self, ordinal: int, violated: bool) -> None:
        """Count one audit; ``ordinal`` is its number in its robot's own sequence, from 0."""
        if ordinal < 0:
            raise InputError(f"audits are numbered from 0, got {ordinal}")
        count = self._counts.setdefault(ordinal // BLOCK, [0, 0])
        count[0] += 1
        count[1] += violated
        self.audits += 1
        self.violations += violated

    @property
    def log_e_value(self) -> float:
        """Natural logarithm of the e-value; 0 before the first audit."""
        if not self._counts:
            return 0.0
        blocks = np.array(sorted(self._counts))
        counts = np.array([self._counts[block] for block in blocks.tolist()])
        return float(log_e_value(counts[:, 0], counts[:, 1], blocks, self.risk))

    @property
    def e_value(self) -> float:
        """Evidence against the promise; 1 before the first audit."""
        return math.exp(min(self.log_e_value, 700.0))

    @property
    def alarm(self) -> str | None:
        """Why the promise is not to be relied on, by what is here now, or None."""
        if self.log_e_value < -math.log(self.level):
            return None
        return (
            f"alarm: {self.violations} of {self.audits} audits exceed the tolerance, promised were "
            f"at most {self.risk:.1%} (level {self.level:g}); calibrate again"
        )


class Drift:
    """Evidence that error estimates no longer come from one distribution.

    The rank of a new estimate among all before it, ties broken at random, is uniform and
    independent of earlier ranks while estimates are exchangeable (Vovk). The bet is Vovk's jumper,
    ``1 + b (u - 1/2)`` with b in {-2..2}; at each step a little wealth changes b, at three rates.
    The first estimates, of calls before deployment, may be none; ``seed`` is of the tie-breaking.
    """

    def __init__(self, estimates: Iterable[float], seed: int | None = None) -> None:
        self._bag = sorted(float(estimate) for estimate in estimates)
        self._random = np.random.default_rng(seed)
        self._wealth = np.full((len(_JUMPS), len(_BETS)), 1.0 / (len(_JUMPS) * len(_BETS)))

    @property
    def e_value(self) -> float:
        """Evidence so far; 1 before the first estimate."""
        return float(self._wealth.sum())

    def add(self, estimate: float) -> float:
        """Rank one estimate and bet on it; its randomised conformal p-value, small if large."""
        value = math.inf if math.isnan(estimate) else float(estimate)
        low, high = bisect_left(self._bag, value), bisect_right(self._bag, value)
        size = len(self._bag)
        u = (size - high + float(self._random.random()) * (high - low + 1)) / (size + 1)
        total = self._wealth.sum(axis=1, keepdims=True)
        moved = (1.0 - _JUMPS) * self._wealth + _JUMPS * total / len(_BETS)
        # Far beyond any level it may stop growing; infinity times zero would lose it.
        self._wealth = np.minimum(moved * (1.0 + _BETS * (u - 0.5)), 1e100)
        insort(self._bag, value)
        return u
