"""The record of one planning call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Record:
    """What happened in one planning call, row by row."""

    evaluations: npt.NDArray[np.int64]  # of the denoiser, those of a fall-back included, (batch,)
    evaluated: npt.NDArray[np.bool_]  # sampler steps that the program evaluated, (batch, steps)
    # Accumulated error, in units of the trajectory, (batch,); NaN where full compute ran because
    # the program failed.
    estimate: npt.NDArray[np.float64]
    fallback: tuple[str | None, ...]  # why a row was run with full compute instead, one per row
    seconds: float  # wall-clock time of the call
    # Per-call bound ``Dhat`` on the deviation, if a certificate gives one, (batch,).
    bound: npt.NDArray[np.float64] | None = None
    # Share of calibration calls with a smaller estimate, if known, (batch,).
    rank: npt.NDArray[np.float64] | None = None
    charged: npt.NDArray[np.float64] | None = None  # the estimate by step, (batch, steps)

    @property
    def fallbacks(self) -> int:
        """Rows that fell back to full compute."""
        return sum(reason is not None for reason in self.fallback)
