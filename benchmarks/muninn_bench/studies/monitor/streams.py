"""Streams of audits drawn from recorded deviations, and what the monitor makes of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from muninn.certify.risk import choose_member
from muninn.model.schedule import FloatArray
from muninn.monitor.sequential import BLOCK, Drift, log_e_value
from muninn_bench.studies.monitor.deployment import Options

Counts = npt.NDArray[np.int64]
NEVER = -1


def first_alarms(violated: npt.NDArray[np.bool_], risk: float, level: float) -> Counts:
    """Audits until each stream's alarm, (streams,); ``NEVER`` where there is none.

    Args:
        violated: outcomes of the audits in order, (streams, audits).
        risk: promised violation rate.
        level: probability of a false alarm.
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
    excess: FloatArray, options: Options, generator: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], Counts]:
    """Calibrate on resampled units and deploy the chosen member, once per stream.

    Returns:
        Outcomes of the audits (streams, audits), and the members chosen, 0 for full compute.
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
    before: FloatArray,
    after: FloatArray,
    good: int,
    streams: int,
    options: Options,
    generator: np.random.Generator,
) -> Counts:
    """Audits from a change after ``good`` audits to the alarm; ``NEVER`` where there is none.

    Streams that raise a (false) alarm before the change are left out.

    Args:
        before, after: excess of calls before and after the change.
        good: audits before the change; ``options.audits`` follow it.
        streams: how many are drawn.
    """
    early = generator.choice(before, (streams, good)) > 1.0
    late = generator.choice(after, (streams, options.audits)) > 1.0
    violated = np.concatenate([early, late], axis=1)
    return _from_change(first_alarms(violated, options.risk, options.level), good)


def warning_delays(
    before: FloatArray,
    after: FloatArray,
    good: int,
    streams: int,
    options: Options,
    generator: np.random.Generator,
) -> Counts:
    """Episodes from the change to the drift warning, as in :func:`delays`, from estimates."""
    found = np.full(streams, NEVER)
    for stream in range(streams):
        drift = Drift(generator.choice(before, len(before)), int(generator.integers(2**31)))
        early, late = generator.choice(before, good), generator.choice(after, options.audits)
        for place, value in enumerate(np.concatenate([early, late]).tolist(), start=1):
            drift.add(value)
            if drift.e_value >= 1.0 / options.level:
                found[stream] = place
                break
    return _from_change(found, good)


def _from_change(found: Counts, good: int) -> Counts:
    kept = found[(found == NEVER) | (found > good)]
    return np.where(kept == NEVER, NEVER, kept - good)
