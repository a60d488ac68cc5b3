"""Figures of a study: rates with intervals, exact paired tests, and what escalation did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from muninn.certify.risk import order_statistic
from muninn_bench.measure.statistics import bootstrap_mean, wilson, worse_p_value
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall

Row = dict[str, Any]


def episode_row(flight: Flight) -> Row:
    """One episode as a line of ``episodes.csv``."""
    calls = flight.calls
    seconds = np.array([call.seconds for call in calls])
    return {
        "method": flight.method,
        "seed": flight.seed,
        "outcome": flight.outcome,
        "seconds": round(flight.seconds, 4),
        "smallest_clearance_m": round(flight.smallest_clearance, 4),
        "calls": len(calls),
        "evaluations": sum(call.evaluations for call in calls),
        "escalated": sum(map(escalated, calls)),
        "damped": sum(call.factor is not None and call.factor < 1.0 for call in calls),
        "resampled": sum(call.source == "resampled" for call in calls),
        "overridden": sum(map(overridden, calls)),
        "holds": sum(call.action == "hold" for call in calls),
        "deadline_misses": sum(call.late for call in calls),
        "latency_p50_s": round(float(np.quantile(seconds, 0.5)), 5),
        "latency_p99_s": round(float(np.quantile(seconds, 0.99)), 5),
        "deviation_m": None if flight.deviation is None else round(flight.deviation, 6),
    }


def overridden(call: FlownCall) -> bool:
    """Full compute in the place of a certified plan; a call of the method Full is none."""
    return call.source == "full" and call.mode == "full"


def escalated(call: FlownCall) -> bool:
    """Escalation changed what is executed: damped, another sample, or full compute."""
    changed = call.factor is not None and call.factor < 1.0
    return changed or call.source == "resampled" or overridden(call)


def of_method(flights: Sequence[Flight], method: str) -> list[Flight]:
    """Flights of a method, in order of their seeds."""
    found = [flight for flight in flights if flight.method == method]
    return sorted(found, key=lambda flight: flight.seed)


def method_row(flights: Sequence[Flight], tolerance: float, risk: float) -> Row:
    """All episodes of one method as a line of ``summary.csv``."""
    count = len(flights)
    calls = [call for flight in flights for call in flight.calls]
    seconds = np.array([call.seconds for call in calls])
    row: Row = {"method": flights[0].method, "episodes": count}
    for outcome in ("success", "collision", "timeout"):
        hits = sum(flight.outcome == outcome for flight in flights)
        low, high = wilson(hits, count)
        row |= {outcome: hits / count, f"{outcome}_low": low, f"{outcome}_high": high}
    times = [flight.seconds for flight in flights if flight.outcome == "success"]
    low, high = bootstrap_mean(times) if times else (math.nan, math.nan)
    row |= {
        "time_to_goal_s": float(np.mean(times)) if times else math.nan,
        "time_to_goal_low": low,
        "time_to_goal_high": high,
        "clearance_p05_m": float(np.quantile([f.smallest_clearance for f in flights], 0.05)),
        "calls": len(calls),
        "evaluations_per_call": float(np.mean([call.evaluations for call in calls])),
        "latency_p50_s": float(np.quantile(seconds, 0.5)),
        "latency_p99_s": float(np.quantile(seconds, 0.99)),
        "deadline_miss_rate": float(np.mean([call.late for call in calls])),
        "hold_rate": float(np.mean([call.action == "hold" for call in calls])),
        "escalation_rate": float(np.mean([escalated(call) for call in calls])),
        "resample_rate": float(np.mean([call.source == "resampled" for call in calls])),
        "override_rate": float(np.mean([overridden(call) for call in calls])),
    }
    return row | deviation_columns(flights, tolerance, risk)


def deviation_columns(flights: Sequence[Flight], tolerance: float, risk: float) -> Row:
    """Of one random call of each episode: how often it was beyond the tolerance.

    ``promised`` is the closed-loop promise for the program that flew: at most the risk, with 95%
    confidence over the episodes flown here (the order statistic of :func:`muninn.calibrate`).
    """
    found = [flight.deviation for flight in flights if flight.deviation is not None]
    if not found:
        return {"beyond_tolerance": None, "beyond_tolerance_high": None, "promised": None}
    beyond = sum(deviation > tolerance for deviation in found)
    allowed = order_statistic(len(found), risk, 0.95) - 1
    return {
        "beyond_tolerance": beyond / len(found),
        "beyond_tolerance_high": wilson(beyond, len(found))[1],
        "promised": beyond <= allowed,
    }


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same episodes.

    Attributes:
        first, second: names.
        success_first, success_second: share of episodes.
        success_p: two-sided exact McNemar test that they succeed equally often.
        worse_p: one-sided, that the second succeeds less often.
        collisions_first, collisions_second: share of episodes.
        collisions_p: two-sided exact McNemar test for collisions.
        more_collisions_p: one-sided, that the second collides more often.
        faster_s: mean seconds to the goal by which the second is faster, where both succeed.
        faster_low, faster_high: 95% bootstrap interval of it.
        time_p: two-sided Wilcoxon signed-rank test of the times to the goal.
        both: episodes in which both succeed.
    """

    first: str
    second: str
    success_first: float
    success_second: float
    success_p: float
    worse_p: float
    collisions_first: float
    collisions_second: float
    collisions_p: float
    more_collisions_p: float
    faster_s: float
    faster_low: float
    faster_high: float
    time_p: float
    both: int


def compare(flights: Sequence[Flight], first: str, second: str) -> Comparison:
    """Paired comparison over the seeds that both methods flew."""
    by_seed = [{flight.seed: flight for flight in of_method(flights, n)} for n in (first, second)]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    one, two = ([flown[seed] for seed in seeds] for flown in by_seed)
    won, won_two = _are(one, "success"), _are(two, "success")
    hit, hit_two = _are(one, "collision"), _are(two, "collision")
    gained = np.array(
        [a.seconds - b.seconds for a, b, x, y in zip(one, two, won, won_two, strict=True) if x & y]
    )
    low, high = bootstrap_mean(gained) if len(gained) else (math.nan, math.nan)
    return Comparison(
        first,
        second,
        float(won.mean()),
        float(won_two.mean()),
        mcnemar(won, won_two),
        worse_p_value(won, won_two),
        float(hit.mean()),
        float(hit_two.mean()),
        mcnemar(hit, hit_two),
        worse_p_value(~hit, ~hit_two),
        float(gained.mean()) if len(gained) else math.nan,
        low,
        high,
        float(stats.wilcoxon(gained).pvalue) if np.any(gained) else 1.0,
        len(gained),
    )


def mcnemar(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Two-sided exact McNemar p-value.

    >>> mcnemar(np.array([True] * 6 + [False]), np.array([False] * 6 + [True]))
    0.125
    """
    differ = int((first != second).sum())
    if not differ:
        return 1.0
    return float(stats.binomtest(int((first & ~second).sum()), differ, 0.5).pvalue)


def _are(flights: Sequence[Flight], outcome: str) -> NDArray[np.bool_]:
    return np.array([flight.outcome == outcome for flight in flights])
