"""The record of one planning call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, repr=False)
class Record:
    """What happened in one planning call, row by row.

    Attributes:
        evaluations: of the denoiser, those of a fall-back included, (batch,).
        evaluated: sampler steps that the program evaluated, (batch, steps).
        estimate: accumulated error, in units of the trajectory, (batch,); NaN where full compute
            ran because the program failed.
        fallback: why a row was run with full compute instead, one per row.
        seconds: wall-clock time of the call.
        bound: per-call bound on the deviation, if a certificate gives one, (batch,).
        rank: share of calibration calls with a smaller estimate, if known, (batch,).
        charged: the estimate by step, (batch, steps).
    """

    evaluations: npt.NDArray[np.int64]
    evaluated: npt.NDArray[np.bool_]
    estimate: npt.NDArray[np.float64]
    fallback: tuple[str | None, ...]
    seconds: float
    bound: npt.NDArray[np.float64] | None = None
    rank: npt.NDArray[np.float64] | None = None
    charged: npt.NDArray[np.float64] | None = None

    @property
    def fallbacks(self) -> int:
        """Rows that fell back to full compute."""
        return sum(reason is not None for reason in self.fallback)

    def __str__(self) -> str:
        """One line for a person; the arrays are in the fields.

        >>> print(Record(np.array([3]), np.ones((1, 9), bool), np.array([0.1]), (None,), 0.012))
        1 plan in 12.0 ms, 3 of 9 evaluations
        >>> many, ones, bound = np.array([3, 4]), np.ones((2, 9), bool), np.array([0.1, 0.00436])
        >>> print(Record(many, ones, bound, (None, None), 0.012, bound))
        2 plans in 12.0 ms, 3 to 4 of 9 evaluations, per-call bounds up to 0.1
        >>> print(Record(many[:1], ones[:1], bound[1:], (None,), 0.012, bound[1:]))
        1 plan in 12.0 ms, 3 of 9 evaluations, per-call bound 0.00436
        """
        count, steps = self.evaluated.shape
        spent = sorted({int(self.evaluations.min()), int(self.evaluations.max())})
        said = f"{count} plan{'s' * (count > 1)} in {1e3 * self.seconds:.1f} ms, "
        said += f"{' to '.join(map(str, spent))} of {steps} evaluations"
        if self.bound is not None:
            name = "per-call bound" if count == 1 else "per-call bounds up to"
            said += f", {name} {self.bound.max():.3g}"
        reasons = sorted({reason for reason in self.fallback if reason is not None})
        return said + (f", {self.fallbacks} in full: {'; '.join(reasons)}" if reasons else "")

    def __repr__(self) -> str:
        """The same line: calls return a plan beside the record, and people print both."""
        return f"Record({self})"
