"""Streams of audits drawn from recorded deviations, and what the monitor makes of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from muninn.certify.risk import choose_member
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn.monitor.sequential import BLOCK, Drift, log_e_value

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
    excess: FloatArray,
    units: int,
    audits: int,
    streams: int,
    risk: float,
    confidence: float,
    generator: np.random.Generator,
) -> tuple[npt.NDArray[np.bool_], Counts]:
    """Calibrate on resampled units and deploy the chosen member, once per stream.

    Returns:
        Outcomes of the audits (streams, audits), and the members chosen, 0 for full compute.
    """
    full = np.zeros((len(excess), 1))
    table = np.concatenate([full, excess], axis=1)
    violated = np.zeros((streams, audits), np.bool_)
    chosen = np.zeros(streams, np.int64)
    for stream in range(streams):
        drawn = generator.integers(len(table), size=units)
        try:
            chosen[stream] = choose_member(table[drawn], risk, confidence)
        except CalibrationError:  # pragma: no cover - member 0 never violates
            continue
        calls = generator.integers(len(table), size=audits)
        violated[stream] = table[calls, chosen[stream]] > 1.0
    return violated, chosen


def delays(
    before: FloatArray,
    after: FloatArray,
    good: int,
    audits: int,
    streams: int,
    risk: float,
    level: float,
    generator: np.random.Generator,
) -> Counts:
    """Audits from the change to the alarm; ``NEVER`` where there is none.

    Streams that raise a (false) alarm before the change are left out.

    Args:
        before, after: excess of calls before and after the change.
        good: audits before the change.
        audits: audits after it.
    """
    early = generator.choice(before, (streams, good)) > 1.0
    late = generator.choice(after, (streams, audits)) > 1.0
    found = first_alarms(np.concatenate([early, late], axis=1), risk, level)
    kept = found[(found == NEVER) | (found > good)]
    return np.where(kept == NEVER, NEVER, kept - good)


def warning_delays(
    calibration: FloatArray,
    before: FloatArray,
    after: FloatArray,
    good: int,
    episodes: int,
    streams: int,
    level: float,
    generator: np.random.Generator,
) -> Counts:
    """Episodes from the change to the drift warning, as in :func:`delays`."""
    found = []
    for _ in range(streams):
        drift = Drift(
            generator.choice(calibration, len(calibration)), int(generator.integers(2**31))
        )
        values = np.concatenate([generator.choice(before, good), generator.choice(after, episodes)])
        at = NEVER
        for place, value in enumerate(values.tolist()):
            drift.add(value)
            if drift.e_value >= 1.0 / level:
                at = place + 1
                break
        if at == NEVER or at > good:
            found.append(at if at == NEVER else at - good)
    return np.array(found, dtype=np.int64)
