"""The monitor's study: false alarms on stationary streams, delays under five shifts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import library_versions
from muninn_bench.measure.statistics import wilson
from muninn_bench.measure.verdicts import Criterion, share_limit
from muninn_bench.studies.monitor.deployment import Deployment, Options, measure
from muninn_bench.studies.monitor.report import AFTER, write_report
from muninn_bench.studies.monitor.scenarios import SHIFTS, Scenario
from muninn_bench.studies.monitor.streams import (
    NEVER,
    chain_streams,
    delays,
    first_alarms,
    warning_delays,
)

Row = dict[str, Any]
POWER = (1.5, 2.0, 4.0, 10.0, 20.0)
"""Violation rates, as multiples of the risk, whose delays are tabulated."""


def run_monitor(
    out: Path, options: Options, command: str = "muninn-bench monitor", progress: bool = True
) -> list[Criterion]:
    """Measure, simulate, and write tables, a picture and a README to ``out``; resumes."""
    deployment = measure(out / "progress.jsonl", options, progress)
    return simulate(out, deployment, options, command)


def simulate(out: Path, deployment: Deployment, options: Options, command: str) -> list[Criterion]:
    """Everything after the measurement; the verdicts."""
    alarms = false_alarms(deployment, options)
    shifts = [detect(scenario, deployment, options, place) for place, scenario in enumerate(SHIFTS)]
    criteria = judge(alarms, shifts, options)
    certified, others = np.split(deployment.own > 1.0, [options.calibration])
    summary = {
        "command": command,
        "options": asdict(options),
        "versions": library_versions(),
        "member": deployment.member,
        "rate_calibration": float(certified.mean()),
        "rate_stationary": float(others.mean()),
        "false_alarms": alarms,
        "shifts": shifts,
        "power": power(deployment, options),
        "criteria": [str(criterion) for criterion in criteria],
    }
    write_report(out, summary, deployment, criteria)
    return criteria


def false_alarms(deployment: Deployment, options: Options) -> list[Row]:
    """Four kinds of stationary streams, all of which keep the promise or were certified to.

    A row holds the mean violation rate, the share of streams with an alarm, the probability that
    theory allows, and the audits until each stream's alarm.
    """
    generator = np.random.default_rng([options.seed, 1])
    level, shape = options.level, (options.streams, options.audits)
    kinds: dict[str, Any] = {
        "the certified member": generator.choice(deployment.own, shape) > 1.0,
        "calibrated anew for each stream": chain_streams(deployment.excess, options, generator)[0],
        "exactly at the risk": generator.random(shape) < options.risk,
    }
    found = [
        (name, float(violated.mean()), first_alarms(violated, options.risk, level))
        for name, violated in kinds.items()
    ]
    generator, pool = np.random.default_rng([options.seed, 2]), deployment.estimates
    warned = warning_delays(pool, pool, 0, max(100, options.streams // 2), options, generator)
    bounds = (level, level + 1.0 - options.confidence, level, level)
    return [
        {
            "streams": name,
            "count": len(alarms),
            "violation_rate": rate,
            "alarm_share": float(np.mean(alarms != NEVER)),
            "bound": bound,
            "limit": share_limit(bound, len(alarms)),
            "alarms": alarms,
        }
        for (name, rate, alarms), bound in zip(
            [*found, ("drift warnings", None, warned)], bounds, strict=True
        )
    ]


def detect(scenario: Scenario, deployment: Deployment, options: Options, place: int) -> Row:
    """Violation rate under one shift, and the delays of alarm and warning."""
    excess, estimates = deployment.shifts[scenario.name]
    violations, calls = int((excess > 1.0).sum()), len(excess)
    streams, generator = (
        max(100, options.streams // 4),
        np.random.default_rng([options.seed, 3, place]),
    )
    return {
        "name": scenario.name,
        "changes": scenario.changes,
        "violations": violations,
        "calls": calls,
        "violation_rate": violations / calls,
        "violation_ci95": wilson(violations, calls),
        "twice_the_risk": violations / calls >= 2 * options.risk,
        AFTER[0]: delays(deployment.own, excess, 0, streams, options, generator),
        AFTER[1]: delays(deployment.own, excess, options.good, streams, options, generator),
        AFTER[2]: warning_delays(
            deployment.estimates, estimates, options.good, streams // 2, options, generator
        ),
    }


def power(deployment: Deployment, options: Options) -> list[Row]:
    """Delays under given violation rates."""
    rest = (max(100, options.streams // 4), options, np.random.default_rng([options.seed, 4]))
    rows = []
    for multiple in POWER:
        rate = min(1.0, multiple * options.risk)
        pool = np.where(np.arange(1000) < round(1000 * rate), 2.0, 0.0)
        row = {"violation_rate": rate, AFTER[0]: delays(deployment.own, pool, 0, *rest)}
        rows.append(row | {AFTER[1]: delays(deployment.own, pool, options.good, *rest)})
    return rows


def judge(alarms: list[Row], shifts: list[Row], options: Options) -> list[Criterion]:
    """What must hold: few false alarms, and every rate of twice the risk is detected."""
    found = []
    for row in alarms:
        name = f"alarms at most {row['bound']:g} + 3 standard errors"
        text = "{alarm_share:.4f} of {count} streams, limit {limit:.4f}".format(**row)
        found.append(Criterion(row["streams"], name, row["alarm_share"] <= row["limit"], text))
    for row in shifts:
        if row["violation_rate"] < 2.0 * options.risk:
            continue
        share, median = float(np.mean(row[AFTER[0]] != NEVER)), np.median(row[AFTER[0]])
        name = f"a rate of at least {2 * options.risk:g} is detected"
        text = f"rate {row['violation_rate']:.3f}; {share:.1%} of streams within {options.audits} "
        text += f"audits, median {median:.0f}"
        found.append(Criterion(row["name"], name, share == 1.0, text))
    return found
