"""What the monitor's benchmark measures: the certified member, stationary and under each shift."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal
from muninn.certify.risk import choose_member
from muninn.model.denoiser import fingerprint
from muninn.model.schedule import FloatArray
from muninn.programs.plan import Family
from muninn.progress import bars
from muninn_bench.studies.certified import load_family
from muninn_bench.studies.monitor.deviations import Bench, Pool
from muninn_bench.studies.monitor.scenarios import SHIFTS, STATIONARY
from muninn_bench.tasks.maze2d.planner import bundled_teacher


@dataclass(frozen=True)
class Options:
    """How much is run, and what is promised.

    Attributes:
        calibration, stationary, shifted: calls to certify on, further stationary ones, and those
            of each shift.
        streams, audits: resampled streams, and audits in each.
        good: audits before the change in the second kind of stream; the first has none.
        level: of alarm and warning.
        tolerance, risk, confidence: of the certificate.
        seed: of everything.
    """

    calibration: int = 200
    stationary: int = 120
    shifted: int = 100
    streams: int = 2000
    audits: int = 1000
    good: int = 200
    level: float = 0.05
    tolerance: float = 0.002
    risk: float = 0.05
    confidence: float = 0.95
    seed: int = 11


QUICK = Options(calibration=80, stationary=40, shifted=40, streams=200, audits=300, good=100)


@dataclass(frozen=True)
class Deployment:
    """What was measured.

    Attributes:
        member: certified one.
        calibration, stationary: excess of the calls certified on and of the others, all members.
        estimates: of all stationary calls under the certified member.
        shifts: excess and estimates of each shift under the certified member.
    """

    member: int
    calibration: FloatArray
    stationary: FloatArray
    estimates: FloatArray
    shifts: dict[str, tuple[FloatArray, FloatArray]]


def measure(journal: Path, options: Options, progress: bool) -> Deployment:
    """Everything that needs the network."""
    teacher, family = bundled_teacher(), load_family("maze2d/family.json", options.seed)
    identity = {
        "weights": fingerprint(teacher.network),
        "family": family.to_json(),
        "seed": options.seed,
        "scenarios": [asdict(scenario) for scenario in (STATIONARY, *SHIFTS)],
        "versions": library_versions(),
    }
    bench = Bench(teacher, family, options.seed, Journal(journal, identity))
    with bars(progress) as task:
        calls = options.calibration + options.stationary
        pool = bench.measure(STATIONARY, tuple(range(1, len(family))), calls, task)
        excess = pool.deviation / options.tolerance
        member = certified(excess[: options.calibration], family, options)
        shifts = {
            scenario.name: _one(bench.measure(scenario, (member,), options.shifted, task), options)
            for scenario in SHIFTS
        }
    return Deployment(
        member,
        excess[: options.calibration],
        excess[options.calibration :],
        pool.estimate[:, member - 1],
        shifts,
    )


def certified(excess: FloatArray, family: Family, options: Options) -> int:
    """The member that a certificate would name, at least 1: full compute needs no monitor."""
    table = np.concatenate([np.zeros((len(excess), 1)), excess], axis=1)
    assert table.shape[1] == len(family)
    return max(1, choose_member(table, options.risk, options.confidence))


def _one(pool: Pool, options: Options) -> tuple[FloatArray, FloatArray]:
    return pool.deviation[:, 0] / options.tolerance, pool.estimate[:, 0]
