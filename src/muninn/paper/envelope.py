"""The conformal envelope of the paper: an upper bound on the reuse error of each step, by score.

Each eligible step has an isotonic regression m_t of error on score, a conformal quantile q_t of
its residuals on other calls, and ``U_t(s) = max(m_t(s) + q_t, 0)`` as a table (paper,
"Split-conformal regression details"). It covers errors *of the ghost chain* on exchangeable calls;
a deployed cache meets others (docs/paper.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from muninn.certify.risk import order_statistic, require_risk, units_needed
from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray
from muninn.paper.ghost import GhostPairs

POINTS = 256
_RANGE = (0.001, 0.999)  # of the calibration scores, spanned by the grid
_SMALLEST = 1e-12  # a score of zero has no place on a log grid; fp32 features resolve far less
_Float32Array = npt.NDArray[np.float32]


def step_risk(risk: float, eligible_count: int, samples: int = 1) -> float:
    """alpha_step: the risk of a call, shared by all samples and eligible steps (Bonferroni)."""
    require_risk(risk, None)
    if eligible_count < 1 or samples < 1:
        raise InputError(
            f"risk is shared by at least one eligible step and one sample, got {eligible_count} "
            f"and {samples}"
        )
    return risk / (samples * eligible_count)


def conformal_index(residuals: int, risk: float, eligible_count: int, samples: int = 1) -> int:
    """k = ceil((n + 1)(1 - alpha_step)) for n residuals; n + 1 where no residual is high enough.

    >>> [conformal_index(2048, 0.05, eligible) for eligible in (1, 80, 120)]
    [1947, 2048, 2049]
    """
    alpha = step_risk(risk, eligible_count, samples)
    return residuals + 1 - order_statistic(residuals, alpha, None)


def residuals_needed(risk: float, eligible_count: int, samples: int = 1) -> int:
    """Smallest calibration half n with ``n + 1 >= 1 / alpha_step``.

    >>> residuals_needed(0.05, 80), residuals_needed(0.05, 120), residuals_needed(0.05, 80, 4)
    (1599, 2399, 6399)
    """
    return units_needed(step_risk(risk, eligible_count, samples), None)


def calls_needed(risk: float, eligible_count: int, samples: int = 1) -> int:
    """Smallest number of calls, both halves together, with a valid index.

    >>> calls_needed(0.05, 80), calls_needed(0.05, 120), calls_needed(0.01, 80)
    (3197, 4797, 15997)
    """
    # The half that trains is rounded down, and needs a call.
    return max(2 * residuals_needed(risk, eligible_count, samples) - 1, 2)


def split_calls(calls: int, seed: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Calls that train the regression and calls that give residuals; one permutation, halved.

    >>> [len(half) for half in split_calls(4096)], [len(half) for half in split_calls(5)]
    ([2048, 2048], [2, 3])
    """
    if calls < 2:
        raise CalibrationError(
            f"{calls} calls cannot be halved; the regression and its residuals need one each"
        )
    order = np.random.default_rng(seed).permutation(calls)
    return order[: calls // 2], order[calls // 2 :]


class StepEnvelope:
    """U_t of one step before it is tabulated: the regression m_t plus q_t, never negative.

    Each half is (scores, errors) of its calls, 1-D: one trains the isotonic regression, of the
    residuals of the other the ``index``-th smallest, from 1, is ``quantile``.
    """

    def __init__(
        self, train: tuple[FloatArray, FloatArray], held: tuple[FloatArray, FloatArray], index: int
    ) -> None:
        fit = IsotonicRegression(y_min=0.0, increasing=True, out_of_bounds="clip").fit(*train)
        self._knots = fit.X_thresholds_.astype(float), fit.y_thresholds_.astype(float)
        residuals = np.sort(held[1] - np.interp(held[0], *self._knots))
        self.quantile = float(residuals[index - 1])

    def __call__(self, scores: FloatArray) -> FloatArray:
        """U_t at some scores: linear between the knots, constant outside."""
        upper: FloatArray = np.maximum(np.interp(scores, *self._knots) + self.quantile, 0.0)
        return upper


def tabulate(envelope: StepEnvelope, scores: FloatArray) -> tuple[_Float32Array, _Float32Array]:
    """The envelope on a log grid over the 0.1% to 99.9% range of the given scores.

    Grid and values are (256,) fp32. The grid increases strictly, even where all scores are equal;
    values are rounded up, so on the grid they are never below the envelope.
    """
    low, high = np.maximum(np.quantile(scores, _RANGE), _SMALLEST)
    grid = np.geomspace(low, high, POINTS).astype(np.float32)
    for point in range(1, POINTS):  # a narrow range has fewer fp32 numbers than points
        grid[point] = max(grid[point], np.nextafter(grid[point - 1], np.float32(np.inf)))
    exact = envelope(grid.astype(np.float64))
    upper = exact.astype(np.float32)
    return grid, np.where(upper < exact, np.nextafter(upper, np.float32(np.inf)), upper)


@dataclass(frozen=True, eq=False)
class Envelope:
    """Tables of U_t for all eligible steps, and where they come from."""

    eligible: tuple[int, ...]  # step indices that have a table, in order
    grid: Tensor  # scores, increasing along each row, (eligible, 256) fp32
    upper: Tensor  # U_t there
    risk: float  # alpha of a call
    samples: int  # the paper's M: samples per decision that share it
    calls: int  # of the calibration
    index: int  # k: which of their sorted residuals was taken
    void: bool  # k had to be lowered to the largest residual, so the level was not reached
    _tables: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __call__(self, step: int, score: Tensor) -> Tensor:
        """Upper bounds on the reuse error at an eligible step, (batch,) fp32.

        They are interpolated in the table; scores (batch,) are clamped to the grid, NaN gives NaN.
        """
        if step not in self.eligible:
            raise InputError(
                f"step {step} has no envelope; eligible are {self.eligible[0]} to "
                f"{self.eligible[-1]} ({len(self.eligible)} steps)"
            )
        row = self.eligible.index(step)
        if score.device not in self._tables:  # moved to a device once
            self._tables[score.device] = self.grid.to(score.device), self.upper.to(score.device)
        grid, upper = (table[row] for table in self._tables[score.device])
        inside = score.to(torch.float32).clamp(grid[0], grid[-1]).contiguous()
        right = torch.searchsorted(grid, inside, right=True).clamp_(1, POINTS - 1)
        left = right - 1
        weight = (inside - grid[left]) / (grid[right] - grid[left])
        return torch.lerp(upper[left], upper[right], weight)


def fit_envelope(
    pairs: GhostPairs, risk: float, *, samples: int = 1, strict: bool = True, seed: int = 0
) -> Envelope:
    """Split-conformal envelopes of every eligible step.

    Args:
        pairs: scores and errors of one probe.
        risk: alpha, the share of calls in which a reuse error may exceed its bound.
        samples: M, where one of M sampled trajectories is picked and the risk is shared.
        strict: raise CalibrationError where calls are too few for the level, with how many are
            needed. False takes the largest residual instead, as published (``k <- min(k, n)``),
            and marks the envelope void.
        seed: of the permutation that halves the calls; 0 is the published one.
    """
    sharing = risk, len(pairs.eligible), samples
    train, held = split_calls(pairs.calls, seed)
    index = conformal_index(len(held), *sharing)
    void = index > len(held)
    if void and strict:
        raise CalibrationError(
            f"{pairs.calls} calls give {len(held)} residuals per step, but risk {risk:g} shared by "
            f"{len(pairs.eligible)} eligible steps and {samples} sample(s) is "
            f"{step_risk(*sharing):.3g} per step and needs {residuals_needed(*sharing)}: give at "
            f"least {calls_needed(*sharing)} calls in all, accept a higher risk, or pass "
            "strict=False for the published rule, whose level is then not reached"
        )
    index = min(index, len(held))
    tables = []
    for step in pairs.eligible:
        scores, errors = pairs.scores[:, step], pairs.errors[:, step]
        fitted = StepEnvelope((scores[train], errors[train]), (scores[held], errors[held]), index)
        tables.append(tabulate(fitted, scores[held]))
    grid, upper = (torch.from_numpy(np.stack(part)) for part in zip(*tables, strict=True))
    return Envelope(pairs.eligible, grid, upper, risk, samples, pairs.calls, index, void)
