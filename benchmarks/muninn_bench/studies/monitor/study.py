"""The monitor's benchmark: false alarms on stationary streams, delays under five shifts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muninn_bench.studies.coverage.statistics import Criterion
from muninn_bench.studies.monitor.deployment import QUICK, Deployment, Options, measure
from muninn_bench.studies.monitor.scenarios import SHIFTS, Scenario
from muninn_bench.studies.monitor.streams import (
    NEVER,
    Counts,
    chain_streams,
    delays,
    first_alarms,
    warning_delays,
)

POWER = (1.5, 2.0, 4.0, 10.0, 20.0)
"""Violation rates, as multiples of the risk, whose delays are tabulated."""


@dataclass(frozen=True)
class FalseAlarms:
    """Alarms in streams that keep the promise.

    Attributes:
        name: kind of stream.
        rate: mean violation rate of the streams.
        alarms: audits until the alarm of each stream.
        bound: probability that theory allows.
    """

    name: str
    rate: float
    alarms: Counts
    bound: float

    @property
    def share(self) -> float:
        """Share of streams with an alarm."""
        return float(np.mean(self.alarms != NEVER))

    @property
    def limit(self) -> float:
        """The bound and three standard errors."""
        return self.bound + 3.0 * float(np.sqrt(self.bound * (1 - self.bound) / len(self.alarms)))


@dataclass(frozen=True)
class Detection:
    """One shift.

    Attributes:
        scenario: what changed.
        violations, calls: under the shift.
        at_once, later: audits to the alarm if the change comes at once, or after good audits.
        warnings: episodes to the drift warning, the change coming after good episodes.
    """

    scenario: Scenario
    violations: int
    calls: int
    at_once: Counts
    later: Counts
    warnings: Counts

    @property
    def rate(self) -> float:
        """Violation rate under the shift."""
        return self.violations / self.calls


def run_monitor(
    out: str | Path = "results/monitor",
    *,
    quick: bool = False,
    options: Options | None = None,
    command: str = "muninn-bench monitor",
    progress: bool = True,
) -> list[Criterion]:
    """Measure, simulate, and write tables, a picture and a README to ``out``; resumes."""
    from muninn_bench.studies.monitor.report import write_report

    options = options or (QUICK if quick else Options())
    out = Path(out)
    deployment = measure(out / "progress.jsonl", options, progress)
    alarms = false_alarms(deployment, options)
    detections = [
        detect(scenario, deployment, options, place) for place, scenario in enumerate(SHIFTS)
    ]
    criteria = judge(alarms, detections, options)
    rates = power(deployment, options)
    write_report(out, asdict(options), deployment, alarms, detections, rates, criteria, command)
    return criteria


def false_alarms(deployment: Deployment, options: Options) -> list[FalseAlarms]:
    """Three kinds of stationary streams, all of which keep the promise or were certified to."""
    generator = np.random.default_rng([options.seed, 1])
    everything = np.concatenate([deployment.calibration, deployment.stationary])
    own = everything[:, deployment.member - 1]
    shape = (options.streams, options.audits)
    kinds: list[tuple[str, Any, float]] = [
        ("the certified member", generator.choice(own, shape) > 1.0, options.level),
        (
            "calibrated anew for each stream",
            chain_streams(
                everything,
                options.calibration,
                options.audits,
                options.streams,
                options.risk,
                options.confidence,
                generator,
            )[0],
            options.level + 1.0 - options.confidence,
        ),
        ("exactly at the risk", generator.random(shape) < options.risk, options.level),
    ]
    return [
        FalseAlarms(
            name, float(violated.mean()), first_alarms(violated, options.risk, options.level), bound
        )
        for name, violated, bound in kinds
    ] + [_false_warnings(deployment, options)]


def _false_warnings(deployment: Deployment, options: Options) -> FalseAlarms:
    generator = np.random.default_rng([options.seed, 2])
    pool = deployment.estimates
    streams, episodes = max(100, options.streams // 2), options.audits
    warned = warning_delays(pool, pool, pool, 0, episodes, streams, options.level, generator)
    return FalseAlarms("drift warnings", float("nan"), warned, options.level)


def detect(scenario: Scenario, deployment: Deployment, options: Options, place: int) -> Detection:
    """Delays of alarm and warning under one shift."""
    excess, estimates = deployment.shifts[scenario.name]
    everything = np.concatenate([deployment.calibration, deployment.stationary])
    before = everything[:, deployment.member - 1]
    generator = np.random.default_rng([options.seed, 3, place])
    streams = max(100, options.streams // 4)
    settings = (options.audits, streams, options.risk, options.level, generator)
    return Detection(
        scenario,
        int((excess > 1.0).sum()),
        len(excess),
        delays(before, excess, 0, *settings),
        delays(before, excess, options.good, *settings),
        warning_delays(
            deployment.estimates,
            deployment.estimates,
            estimates,
            options.good,
            options.audits,
            streams // 2,
            options.level,
            generator,
        ),
    )


def power(deployment: Deployment, options: Options) -> list[tuple[float, Counts, Counts]]:
    """Delays under given violation rates: (rate, at once, after good audits)."""
    everything = np.concatenate([deployment.calibration, deployment.stationary])
    before = everything[:, deployment.member - 1]
    generator = np.random.default_rng([options.seed, 4])
    settings = (options.audits, max(100, options.streams // 4), options.risk, options.level)
    found = []
    for multiple in POWER:
        rate = min(1.0, multiple * options.risk)
        pool = np.where(np.arange(1000) < round(1000 * rate), 2.0, 0.0)
        found.append(
            (
                rate,
                delays(before, pool, 0, *settings, generator),
                delays(before, pool, options.good, *settings, generator),
            )
        )
    return found


def judge(
    alarms: list[FalseAlarms], detections: list[Detection], options: Options
) -> list[Criterion]:
    """What must hold."""
    found = [
        Criterion(
            alarm.name,
            f"alarms at most {alarm.bound:g} + 3 standard errors",
            alarm.share <= alarm.limit,
            f"{alarm.share:.4f} of {len(alarm.alarms)} streams, limit {alarm.limit:.4f}",
        )
        for alarm in alarms
    ]
    for detection in detections:
        if detection.rate < 2.0 * options.risk:
            continue
        share = float(np.mean(detection.at_once != NEVER))
        found.append(
            Criterion(
                detection.scenario.name,
                f"a rate of at least {2 * options.risk:g} is detected",
                share == 1.0,
                f"rate {detection.rate:.3f}; {share:.1%} of streams within {options.audits} "
                f"audits, median {np.median(detection.at_once):.0f}",
            )
        )
    return found
