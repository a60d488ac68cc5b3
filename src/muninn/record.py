"""The record of one planning call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Record:
    """What happened in one planning call, row by row.

    Attributes:
        evaluations: of the denoiser, those of a fall-back included, (batch,).
        evaluated: sampler steps that the program evaluated, (batch, steps).
        estimate: accumulated error, in units of the trajectory, (batch,); NaN where full compute
            ran because the program failed.
        fallback: why a row was run with full compute instead, one per row.
        seconds: wall-clock time of the call.
        bound: per-call bound ``Dhat`` on the deviation, if a certificate gives one, (batch,).
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
