"""What the monitor's study measures: the certified member, stationary and under each shift."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import choose_member
from muninn.engines.choose import runtime_for
from muninn.model.denoiser import fingerprint
from muninn.model.schedule import FloatArray
from muninn.progress import bars
from muninn_bench.studies.certified import load_family
from muninn_bench.studies.monitor.scenarios import SHIFTS, STATIONARY, Scenario, audited_contexts
from muninn_bench.tasks.maze2d.planner import bundled_teacher, maze_planner

_CHUNK = 40
_DRIVER = 4
"""Member that drives to the second call of an episode: the one the demo certifies."""


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


SMOKE = Options(calibration=80, stationary=40, shifted=40, streams=200, audits=300, good=100)


@dataclass(frozen=True)
class Deployment:
    """What was measured.

    Attributes:
        member: certified one, at least 1: full compute needs no monitor.
        excess: of the stationary calls, those certified on first, (calls, members after Full).
        estimates: of the same calls under the certified member.
        shifts: excess and estimates of each shift under the certified member.
    """

    member: int
    excess: FloatArray
    estimates: FloatArray
    shifts: dict[str, tuple[FloatArray, FloatArray]]

    @property
    def own(self) -> FloatArray:
        """Excess of the stationary calls under the certified member."""
        return self.excess[:, self.member - 1]


def measure(path: Path, options: Options, progress: bool) -> Deployment:
    """Everything that needs the network; what the journal at ``path`` holds is not run again."""
    teacher, family = bundled_teacher(), load_family("maze2d/family.json", options.seed)
    planner = maze_planner(teacher)
    driver = runtime_for(planner, family.member(_DRIVER))
    identity = {
        "weights": fingerprint(teacher.network),
        "family": family.to_json(),
        "seed": options.seed,
        "scenarios": [asdict(scenario) for scenario in (STATIONARY, *SHIFTS)],
        "versions": library_versions(),
    }
    journal = Journal(path, identity)

    def pool(scenario: Scenario, members: tuple[int, ...], calls: int) -> list[FloatArray]:
        """Excess and error estimates of a scenario, each (calls, members)."""
        stream = call_seed(options.seed, int(scenario == STATIONARY)) % 2**31
        advance, parts = task(scenario.name, calls), []
        for first in range(0, calls, _CHUNK):
            count = min(_CHUNK, calls - first)
            key = f"{scenario.name}/{first}-{count}/{members}"
            if (stored := journal.get(key)) is None:
                with torch.autocast("cpu", torch.bfloat16) if scenario.half else nullcontext():
                    contexts = audited_contexts(scenario, teacher, driver, stream, first, count)
                    paired = PairedCalls(
                        planner, contexts, count, rms_step, call_seed(stream, first)
                    )
                    found = [paired.measure(family.member(k), list(range(count))) for k in members]
                stored = [
                    np.stack([one.deviation for one in found], axis=1).tolist(),
                    np.stack([one.estimate for one in found], axis=1).tolist(),
                ]
                journal.put(key, stored)
            parts.append(stored)
            advance(count)
        deviation, estimate = (np.concatenate(part) for part in zip(*parts, strict=True))
        return [deviation / options.tolerance, estimate]

    with bars(progress) as task:
        members = tuple(range(1, len(family)))
        excess, estimates = pool(STATIONARY, members, options.calibration + options.stationary)
        table = np.pad(excess[: options.calibration], ((0, 0), (1, 0)))  # Full deviates by nothing
        member = max(1, choose_member(table, options.risk, options.confidence))
        shifts = {}
        for scenario in SHIFTS:
            own, estimate = pool(scenario, (member,), options.shifted)
            shifts[scenario.name] = (own[:, 0], estimate[:, 0])
    return Deployment(member, excess, estimates[:, member - 1], shifts)
