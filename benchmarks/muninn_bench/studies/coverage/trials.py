"""The coverage benchmark through the front door: ``muninn.calibrate``, then ``muninn.cache``.

Slower by orders of magnitude than the bulk repetitions, so there are fewer. Each trial also
computes its own calibration units once more in bulk and checks that both ways agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.calibrate import calibrate, split_units
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import order_statistic, scan_members
from muninn.certify.units import Episodes
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family
from muninn_bench.studies.coverage.settings import (
    EPISODE_CALLS,
    SETTINGS,
    Laboratory,
    Setting,
    block_noise,
    drive_episode,
    next_contexts,
    start_contexts,
)

RISK = 0.1
CONFIDENCE = 0.95
UNITS = 118
BOUND_UNITS = 18  # serve the per-call bound; the other 100 certify
_BATCH = 128
_THRESHOLDS = (0.006, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)


@dataclass(frozen=True)
class Trial:
    """A setting with a family, run through the public verbs.

    Attributes:
        name: in file names and tables.
        setting: planner, unit and tolerance.
        adaptive: an adaptive family instead of the setting's static one.
        fresh: new units on which a trial measures risk and the per-call bound.
        thinning: runs one in so many trials, because it is slow.
    """

    name: str
    setting: Setting
    adaptive: bool = False
    fresh: int = 2000
    thinning: int = 1

    @property
    def family(self) -> Family:
        """The frozen family."""
        if not self.adaptive:
            return self.setting.family
        plans = tuple(Adaptive(threshold, dense=2) for threshold in _THRESHOLDS)
        return Family(Forecast("sample", 1), (Everywhere(), *plans), "adaptive")


TRIALS = (
    *(
        Trial(setting.name, setting, thinning=3 if setting.unit == "episode" else 1)
        for setting in SETTINGS
    ),
    Trial("ddim-call-adaptive", SETTINGS[0], adaptive=True),
)


def run_trial(trial: Trial, index: int, seed: int) -> dict[str, Any]:
    """Calibrate, deploy on fresh units, and compare with the bulk computation.

    Returns:
        member: the certified one; agreed: whether the bulk computation counts the same
        violations for every accepted member and accepts as many (None for adaptive families,
        which it cannot run); risk: share of fresh units beyond the tolerance; covered: share of
        fresh units whose per-call bound held at every call; evaluations: mean per call.
    """
    seed = call_seed(seed, 1000 + TRIALS.index(trial), index)
    generator = torch.Generator().manual_seed(seed)
    setting = trial.setting
    planner = setting.planner()
    contexts = start_contexts(UNITS, generator)
    closed = setting.unit == "episode"
    certificate = calibrate(
        planner,
        Episodes(drive_episode, UNITS) if closed else contexts,
        tolerance=setting.tolerance,
        risk=RISK,
        confidence=CONFIDENCE,
        family=trial.family,
        seed=seed,
        batch_size=_BATCH,
        progress=False,
    )
    risk, covered, evaluations = _deploy(trial, cache(planner, certificate), generator)
    return {
        "member": certificate.member,
        "agreed": None if trial.adaptive else _agrees(setting, certificate, contexts, seed),
        "risk": risk,
        "covered": covered,
        "evaluations": evaluations,
    }


def _deploy(
    trial: Trial, fast: CachedPlanner, generator: torch.Generator
) -> tuple[float, float, float]:
    """Realised risk, coverage of the per-call bound, and mean evaluations on fresh units."""
    setting = trial.setting
    context = start_contexts(trial.fresh, generator)
    excess, covered = np.zeros(trial.fresh), np.ones(trial.fresh, dtype=bool)
    evaluations = 0.0
    calls = EPISODE_CALLS if setting.unit == "episode" else 1
    for _ in range(calls):
        noise = fast.planner.draw_noise(trial.fresh, generator=generator)
        trajectory, record = fast(context, noise=noise)
        deviation = rms_step(fast.planner.sample(context, noise=noise), trajectory).numpy()
        excess = np.maximum(excess, deviation / setting.tolerance)
        assert record.bound is not None
        covered &= deviation <= record.bound
        evaluations += float(record.evaluations.mean()) / calls
        context = next_contexts(context, trajectory)
    return float(np.mean(excess > 1.0)), float(np.mean(covered)), evaluations


def _agrees(setting: Setting, certificate: Certificate, contexts: torch.Tensor, seed: int) -> bool:
    """Whether the bulk computation of the very same units comes to the same scan."""
    split = split_units(UNITS, RISK, CONFIDENCE, tune=False, seed=seed)["certify"]
    planner = setting.planner()
    if setting.unit == "episode":
        starts = torch.cat(
            [
                start_contexts(1, torch.Generator().manual_seed(call_seed(seed, unit)))
                for unit in split
            ]
        )
        noises = [
            planner.draw_noise(seeds=[call_seed(seed, unit, call) for unit in split])
            for call in range(EPISODE_CALLS)
        ]
    else:
        starts = contexts[split]
        paired = PairedCalls(planner, contexts, UNITS, rms_step, call_seed(seed, 0))
        noises = [paired.noise(split)]
    laboratory = Laboratory(setting, len(split))
    excess = laboratory.excess(starts, [block_noise(noise) for noise in noises])
    allowed = order_statistic(len(split), RISK, CONFIDENCE) - 1
    accepted, violations = scan_members(([column] for column in excess.T), len(split), allowed)
    public = [row["violations"] for row in certificate.realised if row["accepted"]]
    return accepted - 1 == certificate.member and violations[1:accepted] == public
