"""Streams of audits drawn from measured calls, and what the monitor makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator, default_rng

from muninn.certify.risk import choose_member
from muninn.model.schedule import FloatArray
from muninn.monitor.sequential import BLOCK, Drift, log_e_value
from muninn_bench.measure.statistics import wilson
from muninn_bench.measure.verdicts import share_limit
from muninn_bench.studies.monitor.deployment import SHIFTS, Deployment, Options

Row = dict[str, Any]
NEVER = math.inf
"""Audits until an alarm that is not raised."""
AFTER = ("alarm_at_once", "alarm_after_good_audits", "warning_after_good_episodes")
"""Columns of delays: the shift comes at once, or after good audits or episodes."""
_POWER = (1.5, 2.0, 4.0, 10.0, 20.0)
"""Violation rates, as multiples of the risk, whose delays are tabulated."""


def first_alarms(violated: npt.NDArray[np.bool_], risk: float, level: float) -> FloatArray:
    """Audits until each stream's alarm, (streams,), at a level; ``NEVER`` where there is none.

    ``violated`` holds the outcomes of the audits in order, (streams, audits).
    """
    streams, audits = violated.shape
    blocks = np.arange(-(-audits // BLOCK))
    trials = np.zeros((streams, len(blocks)), np.int64)
    bad = np.zeros_like(trials)
    found = np.full(streams, NEVER)
    quiet = np.arange(streams)
    for audit in range(audits):
        block = audit // BLOCK
        trials[quiet, block] += 1
        bad[quiet, block] += violated[quiet, audit]
        if not violated[quiet, audit].any():
            continue  # without a violation no evidence can grow
        seen = slice(0, block + 1)
        evidence = log_e_value(trials[quiet, seen], bad[quiet, seen], blocks[seen], risk)
        loud = evidence >= -math.log(level)
        found[quiet[loud]] = audit + 1
        quiet = quiet[~loud]
    return found


def chain_streams(
    excess: FloatArray, options: Options, generator: Generator
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Outcomes of audits (streams, audits) of members chosen on resampled units, and these.

    Each stream is calibrated on its own; 0 is full compute.
    """
    table = np.pad(excess, ((0, 0), (1, 0)))  # Full deviates by nothing
    violated = np.zeros((options.streams, options.audits), np.bool_)
    chosen = np.zeros(options.streams, np.int64)
    for stream in range(options.streams):
        drawn = generator.integers(len(table), size=options.calibration)
        chosen[stream] = choose_member(table[drawn], options.risk, options.confidence)
        calls = generator.integers(len(table), size=options.audits)
        violated[stream] = table[calls, chosen[stream]] > 1.0
    return violated, chosen


def delays(
    before: FloatArray, after: FloatArray, good: int, options: Options, generator: Generator
) -> FloatArray:
    """Audits from a change to the alarm; ``NEVER`` where there is none.

    The change comes after ``good`` audits, and ``options.audits`` follow it. Streams that raise a
    (false) alarm before it are left out. ``before`` and ``after`` hold the excess of calls.
    """
    early = generator.choice(before, (options.streams, good)) > 1.0
    late = generator.choice(after, (options.streams, options.audits)) > 1.0
    found = first_alarms(np.concatenate([early, late], axis=1), options.risk, options.level)
    return found[found > good] - good


def warning_delays(
    before: FloatArray, after: FloatArray, good: int, options: Options, generator: Generator
) -> FloatArray:
    """Episodes from a change to the drift warning, as in :func:`delays` but from estimates."""
    found = np.full(options.streams, NEVER)
    for stream in range(options.streams):
        drift = Drift(generator.choice(before, len(before)), int(generator.integers(2**31)))
        early, late = generator.choice(before, good), generator.choice(after, options.audits)
        for place, value in enumerate(np.concatenate([early, late]).tolist(), start=1):
            drift.add(value)
            if drift.e_value >= 1.0 / options.level:
                found[stream] = place
                break
    return found[found > good] - good


def false_alarms(deployment: Deployment, options: Options) -> list[Row]:
    """Four kinds of stationary streams, all of which keep the promise or were certified to.

    A row holds the mean violation rate, the share of streams with an alarm, the probability that
    theory allows, and the audits until each stream's alarm.
    """
    generator = default_rng([options.seed, 1])
    level, shape = options.level, (options.streams, options.audits)
    streams = {
        "the certified member": generator.choice(deployment.own, shape) > 1.0,
        "calibrated anew for each stream": chain_streams(deployment.excess, options, generator)[0],
        "exactly at the risk": generator.random(shape) < options.risk,
    }
    found = {name: first_alarms(own, options.risk, level) for name, own in streams.items()}
    fewer, pool = replace(options, streams=max(100, options.streams // 2)), deployment.estimates
    found["drift warnings"] = warning_delays(pool, pool, 0, fewer, default_rng([options.seed, 2]))
    rows = []
    for name, alarms in found.items():
        bound = level + 1.0 - options.confidence if "anew" in name else level
        row = {
            "streams": name,
            "count": len(alarms),
            "violation_rate": float(streams[name].mean()) if name in streams else None,
            "alarm_share": float(np.mean(alarms < NEVER)),
            "bound": bound,
            "limit": share_limit(bound, len(alarms)),
            "alarms": alarms,
        }
        rows.append(row)
    return rows


def detections(deployment: Deployment, options: Options) -> list[Row]:
    """The violation rate under each shift, and the delays of alarm and warning."""
    rows, fewer = [], replace(options, streams=max(100, options.streams // 4) // 2)
    for place, scenario in enumerate(SHIFTS):
        excess, estimates = deployment.shifts[scenario.name]
        violations, calls = int((excess > 1.0).sum()), len(excess)
        generator = default_rng([options.seed, 3, place])
        row = {
            "name": scenario.name,
            "changes": scenario.changes,
            "violations": violations,
            "calls": calls,
            "violation_rate": violations / calls,
            "violation_ci95": wilson(violations, calls),
            "twice_the_risk": violations / calls >= 2 * options.risk,
            **_alarm_delays(deployment, excess, options, generator),
        }
        pool = deployment.estimates
        row[AFTER[2]] = warning_delays(pool, estimates, options.good, fewer, generator)
        rows.append(row)
    return rows


def power(deployment: Deployment, options: Options) -> list[Row]:
    """Delays under given violation rates."""
    generator, rows = default_rng([options.seed, 4]), []
    for rate in (min(1.0, multiple * options.risk) for multiple in _POWER):
        pool = np.where(np.arange(1000) < round(1000 * rate), 2.0, 0.0)
        delayed = _alarm_delays(deployment, pool, options, generator)
        rows.append({"violation_rate": rate, **delayed})
    return rows


def _alarm_delays(
    deployment: Deployment, excess: FloatArray, options: Options, generator: Generator
) -> Row:
    fewer = replace(options, streams=max(100, options.streams // 4))
    return {
        name: delays(deployment.own, excess, good, fewer, generator)
        for name, good in zip(AFTER[:2], (0, options.good), strict=True)
    }
