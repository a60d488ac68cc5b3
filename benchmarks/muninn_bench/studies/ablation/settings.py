"""Sizes, seeds and grids of the study, fixed before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOLERANCES = (0.002, 0.02, 0.05, 0.15, 0.30)
RISKS = (0.01, 0.05, 0.10, 0.20)
CONFIDENCE = 0.95
TOLERANCE, RISK = 0.05, 0.05
"""Of the headline comparison with baselines, and of every table that has only one."""

RISK_TOLERANCES = (0.02, 0.05)
"""Of table (ii)."""

SWEEP_TOLERANCE = 0.02
"""Of tables (iii) to (vi): at 0.05 the published method reuses every step it may on a good teacher,
so that nothing else would show."""

ADAPTIVE_TOLERANCES = (0.002, 0.05)
"""Promises at which gates and forecasts are compared, table (vii)."""

UNITS = ("algorithm", "appendix", "mended")
"""How the published method accounts for its budget."""

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
TEACHERS = {"diffuser": ("unet", "maze2d"), "transformer": ("transformer", "maze2d-transformer")}
"""Of a variant of maze2d: its name in the study, and that of the bundled model."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; by default the full study."""

    tune: int = 128  # calls of our own streams
    calibrate: int = 1024
    test: int = 2048
    paper: int = 1024  # test calls of the published method, whose settings are many
    variants: int = 512  # calls per stream for gates and forecasts, table (vii)
    ghost: int = 4096  # calls of Algorithm 2
    drive: int = 150  # test calls whose plans are followed in the environment
    rounds: int = 12  # timed batch-1 calls per program
    batch: int = 512  # calls run together
    # Evaluations of the baselines that spend the same in every call, and of table (vii).
    counts: tuple[int, ...] = (70, 50, 40, 30, 25, 20, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2)
    variant_counts: tuple[int, ...] = (30, 22, 17, 14, 12, 10, 8, 7, 6, 5, 4, 3)
    every: int = 1  # of families, forecasts and sweeps, take every so many


FULL = Sizes()
SMOKE = Sizes(16, 60, 8, 8, 60, 24, 4, 1, 32, counts=(20, 8, 4), variant_counts=(10, 5), every=4)


def paper_settings(calls: int, few: bool = False) -> list[dict[str, Any]]:
    """Settings of the published method in tables (i) to (vi), each once; calls of Algorithm 2.

    ``few`` leaves out repetitions of a sweep in other units or at another tolerance.
    """
    tolerances = RISK_TOLERANCES[:1] if few else RISK_TOLERANCES
    base = {
        "tolerance": SWEEP_TOLERANCE,
        "risk": RISK,
        "units": "algorithm",
        "sensitivity": True,
        "longest_age": None,
        "prefix": FORBIDDEN[0][0],
        "suffix": FORBIDDEN[0][1],
        "calls": calls,
        "depth": PROBES[0][0],
        "score": PROBES[0][1],
    }
    asked = [{"tolerance": value, "risk": risk} for value in tolerances for risk in RISKS]
    first = [*({"tolerance": value} for value in TOLERANCES), *asked]
    swept: list[dict[str, Any]] = [{**one, "longest_age": LONGEST_AGE} for one in asked]
    swept += [{"sensitivity": False}]
    swept += [{"depth": depth, "score": score} for depth, score in PROBES]
    swept += [{"prefix": before, "suffix": after} for before, after in FORBIDDEN]
    swept += [{"calls": count} for count in CALIBRATION_CALLS if count <= calls]
    accounts = ("mended",) if few else ("algorithm", "mended")
    found = [{**base, "units": units, **one} for units in UNITS for one in first]
    found += [{**base, "units": units, **one} for units in accounts for one in swept]
    return [one for place, one in enumerate(found) if one not in found[:place]]
