"""Sizes, seeds and grids of the study, fixed before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCES = (0.002, 0.02, 0.05, 0.15, 0.30)
RISKS = (0.01, 0.05, 0.10, 0.20)
CONFIDENCE = 0.95
TOLERANCE, RISK = 0.05, 0.05
"""Of the headline comparison with baselines."""

RISK_TOLERANCES = (0.02, 0.05)
"""Of table (ii)."""

SWEEP_TOLERANCE = 0.02
"""Of tables (iii) to (vi): at 0.05 the published method reuses every step it may on a good teacher,
so that nothing else would show."""

ADAPTIVE_TOLERANCES = (0.002, 0.05)
"""Promises at which gates and forecasts are compared, table (vii)."""

FORBIDDEN = ((10, 10), (0, 0), (5, 0), (0, 5), (5, 5))
CALIBRATION_CALLS = (20, 100, 500, 1000, 4096)
LONGEST_AGE = 4
"""Of reuse in the variant with an age cap: the oldest value that Algorithm 2 ever sees."""

PROBES = (
    ("stem-1", "relative_l1"),
    ("stem-2", "relative_l1"),
    ("input", "relative_l1"),
    ("stem-1", "cosine"),
    ("stem-1", "l2"),
)
SEED = 11
TEACHERS = {"unet": "maze2d", "transformer": "maze2d-transformer"}
"""Name in the study, name of the bundled model."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        tune, calibrate, test: calls of our own streams.
        paper: test calls of the published method, whose settings are many.
        variants: calls per stream for gates and forecasts, table (vii).
        ghost: calls of Algorithm 2.
        drive: test calls whose plans are followed in the environment.
        rounds: timed batch-1 calls per program.
        batch: calls run together.
        counts: evaluations of the baselines that spend the same in every call.
        variant_counts: evaluations of the forecasts in table (vii).
        every: of families, forecasts and sweeps, take every so many.
    """

    tune: int
    calibrate: int
    test: int
    paper: int
    variants: int
    ghost: int
    drive: int
    rounds: int
    batch: int
    counts: tuple[int, ...]
    variant_counts: tuple[int, ...]
    every: int = 1


FULL = Sizes(
    tune=128,
    calibrate=1024,
    test=2048,
    paper=1024,
    variants=512,
    ghost=4096,
    drive=150,
    rounds=12,
    batch=512,
    counts=(70, 50, 40, 30, 25, 20, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2),
    variant_counts=(30, 22, 17, 14, 12, 10, 8, 7, 6, 5, 4, 3),
)
QUICK = Sizes(
    tune=16,
    calibrate=60,
    test=8,
    paper=8,
    variants=60,
    ghost=24,
    drive=4,
    rounds=1,
    batch=32,
    counts=(20, 8, 4),
    variant_counts=(10, 5),
    every=4,
)
