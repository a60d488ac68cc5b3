"""Figures of a study: rates with intervals, exact paired tests, and what escalation did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from muninn.certify.certificate import Certificate
from muninn.certify.risk import order_statistic
from muninn_bench.measure.statistics import bootstrap_mean, differ_p_value, wilson, worse_p_value
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall
from muninn_bench.studies.closed_loop.methods import METHODS

Row = dict[str, Any]

DEPLOYED = "combined"
PAIRS = (
    *((full, ours) for full in ("full", "full-instant") for ours in ("muninn-only", "combined")),
    ("fewsteps", "muninn-only"),
    *(("muninn-only", ours) for ours in ("combined", "dampen", "resample+dampen", "full-override")),
)
"""Methods that are compared on the same episodes."""


def bound_of(certificate: Certificate) -> Callable[[FlownCall], float]:
    """The bound of the plan that a call executed: NaN for a hold, 0 for full compute's own plan."""

    def bound(call: FlownCall) -> float:
        if call.estimate is None:
            return math.nan
        if call.source == "full" or certificate.bound is None:
            return 0.0
        return certificate.bound(np.array([call.estimate])).item()

    return bound


_ESCALATED: dict[str, Callable[[FlownCall], bool]] = {
    "damped": lambda call: call.factor is not None and call.factor < 1.0,
    "resampled": lambda call: call.source == "resampled",
    # A call of the method Full is no override.
    "overridden": lambda call: call.source == "full" and call.mode == "full",
}
HAPPENED: dict[str, Callable[[FlownCall], bool]] = {
    "escalated": lambda call: any(happened(call) for happened in _ESCALATED.values()),
    **_ESCALATED,
    "holds": lambda call: call.action == "hold",
    "deadline_misses": lambda call: call.late,
}
RATES = {
    "deadline_miss_rate": "deadline_misses",
    "hold_rate": "holds",
    "escalation_rate": "escalated",
    "resample_rate": "resampled",
    "override_rate": "overridden",
}
"""Columns of ``summary.csv`` by those of ``episodes.csv`` whose mean they are."""


def episode_row(flight: Flight) -> Row:
    """One episode as a line of ``episodes.csv``."""
    calls = flight.calls
    seconds = [call.seconds for call in calls]
    return {
        "method": flight.method,
        "seed": flight.seed,
        "outcome": flight.outcome,
        "seconds": round(flight.seconds, 4),
        "smallest_clearance_m": round(flight.smallest_clearance, 4),
        "calls": len(calls),
        "evaluations": sum(call.evaluations for call in calls),
        **{name: sum(map(happened, calls)) for name, happened in HAPPENED.items()},
        "latency_p50_s": round(float(np.quantile(seconds, 0.5)), 5),
        "latency_p99_s": round(float(np.quantile(seconds, 0.99)), 5),
        "deviation_m": None if flight.deviation is None else round(flight.deviation, 6),
    }


def of_method(flights: Sequence[Flight], method: str) -> list[Flight]:
    """Flights of a method, in order of their seeds."""
    found = [flight for flight in flights if flight.method == method]
    return sorted(found, key=lambda flight: flight.seed)


def method_row(flights: Sequence[Flight], tolerance: float, risk: float) -> Row:
    """All episodes of one method as a line of ``summary.csv``."""
    count = len(flights)
    calls = [call for flight in flights for call in flight.calls]
    seconds = [call.seconds for call in calls]
    row: Row = {"method": flights[0].method, "episodes": count}
    for outcome in ("success", "collision", "timeout"):
        hits = sum(flight.outcome == outcome for flight in flights)
        row |= _interval(outcome, outcome, hits / count, wilson(hits, count))
    row |= _mean("time_to_goal", [f.seconds for f in flights if f.outcome == "success"])
    row |= {
        "clearance_p05_m": float(np.quantile([f.smallest_clearance for f in flights], 0.05)),
        "calls": len(calls),
        "evaluations_per_call": float(np.mean([call.evaluations for call in calls])),
        "latency_p50_s": float(np.quantile(seconds, 0.5)),
        "latency_p99_s": float(np.quantile(seconds, 0.99)),
    }
    row |= {name: float(np.mean(list(map(HAPPENED[of], calls)))) for name, of in RATES.items()}
    return row | deviation_columns(flights, tolerance, risk)


def method_rows(flights: Sequence[Flight], certificate: Certificate) -> list[Row]:
    """A row of the summary for every method that was flown."""
    assert certificate.tolerance is not None
    by_method = [of_method(flights, name) for name in METHODS]
    return [method_row(own, certificate.tolerance, certificate.risk) for own in by_method if own]


_COPIED = ("mode", "action", "source", "factor", "reason")


def call_rows(flights: Sequence[Flight], certificate: Certificate) -> list[Row]:
    """Every call as a line of ``calls.csv``."""
    bound = bound_of(certificate)
    return [
        {
            "seed": flight.seed,
            "taken_s": round(call.began, 4),
            "latency_s": round(call.seconds, 5),
            "clearance_m": round(call.clearance, 4),
            "evaluations": call.evaluations,
            "rank": None if call.signal is None else round(call.signal, 4),
            "dhat_m": None if math.isnan(bound(call)) else round(bound(call), 5),
            **{name: getattr(call, name) for name in _COPIED},
        }
        for flight in flights
        for call in flight.calls
    ]


def deviation_columns(flights: Sequence[Flight], tolerance: float, risk: float) -> Row:
    """Of one random call of each episode: how often it was beyond the tolerance.

    ``promised`` is the closed-loop promise for the program that flew: at most the risk, with 95%
    confidence over the episodes flown here (the order statistic of :func:`muninn.calibrate`).
    """
    found = [flight.deviation for flight in flights if flight.deviation is not None]
    if not found:
        return {"beyond_tolerance": None, "beyond_tolerance_high": None, "promised": None}
    beyond = sum(deviation > tolerance for deviation in found)
    return {
        "beyond_tolerance": beyond / len(found),
        "beyond_tolerance_high": wilson(beyond, len(found))[1],
        "promised": beyond < order_statistic(len(found), risk, 0.95),
    }


def compare(flights: Sequence[Flight], first: str, second: str) -> Row:
    """Two methods on the seeds that both flew, as a line of ``comparisons.csv``.

    ``success_p`` and ``collisions_p`` are two-sided exact McNemar tests, ``worse_p`` and
    ``more_collisions_p`` one-sided: the second is worse. ``faster_s`` is the mean number of seconds
    by which the second reaches the goal earlier in the ``both`` episodes where both do, with a 95%
    bootstrap interval and Wilcoxon's two-sided signed-rank test.
    """
    by_seed = [{flight.seed: flight for flight in of_method(flights, n)} for n in (first, second)]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in seeds]
    won, hit = (
        np.array([[flight.outcome == outcome for flight in pair] for pair in pairs]).T
        for outcome in ("success", "collision")
    )
    gained = np.array([one.seconds - two.seconds for one, two in pairs])[won.all(axis=0)]
    return {
        "first": first,
        "second": second,
        "success_first": float(won[0].mean()),
        "success_second": float(won[1].mean()),
        "success_p": differ_p_value(*won),
        "worse_p": worse_p_value(*won),
        "collisions_first": float(hit[0].mean()),
        "collisions_second": float(hit[1].mean()),
        "collisions_p": differ_p_value(*hit),
        "more_collisions_p": worse_p_value(*~hit),
        **_mean("faster", gained),
        "time_p": float(stats.wilcoxon(gained).pvalue) if np.any(gained) else 1.0,
        "both": len(gained),
    }


def _mean(name: str, seconds: Any) -> Row:
    """Columns of a mean time and its 95% bootstrap interval; NaN without values."""
    if not len(seconds):
        return _interval(f"{name}_s", name, math.nan, (math.nan, math.nan))
    return _interval(f"{name}_s", name, float(np.mean(seconds)), bootstrap_mean(seconds))


def _interval(name: str, stem: str, value: float, ends: tuple[float, float]) -> Row:
    return {name: value, f"{stem}_low": ends[0], f"{stem}_high": ends[1]}
