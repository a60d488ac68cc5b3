"""Adaptive plans for a tolerance: the largest threshold that keeps it, and others around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from muninn.certify.search import Search
from muninn.certify.static_search import SAFE, SMALL, Found
from muninn.programs.forecast import AnyForecast
from muninn.programs.plan import Adaptive, Everywhere, Family, Program

EMPHASES = (-4.0, -2.0, 0.0)
ADAPTIVE_SPREAD = (0.12, 0.35, 0.6, 0.8, 0.95, 1.1, 1.35)


def adaptive_family(search: Search, forecasts: Sequence[AnyForecast]) -> Found | None:
    """Thresholds around the largest one that keeps the tolerance, for the best forecast."""
    steps = len(search.paired.planner.sampler)
    found: list[tuple[float, AnyForecast, Adaptive]] = []
    for forecast in forecasts:
        starts = {forecast.bind(search.paired.planner.sampler).memory}
        if search.paired.planner.sampler.stochastic:
            starts |= {steps // 5, steps * 2 // 5}  # modes of a stochastic chain are decided early
        for dense in sorted(start for start in starts if start + 1 < steps):
            for emphasis in EMPHASES:
                plan = _largest_threshold(search, forecast, Adaptive(0.0, dense, emphasis=emphasis))
                if plan is not None:
                    score = search.score(Program(forecast, plan), SMALL)
                    found.append((score.evaluations, forecast, plan))
    if not found:
        return None
    _, forecast, plan = min(found, key=lambda item: item[0])
    for _ in range(6):  # the threshold was found on few calls; make it hold on all of them
        if search.score(Program(forecast, plan)).excess <= 1.0:
            break
        plan = replace(plan, threshold=0.8 * plan.threshold)
    thresholds = {plan.threshold * factor for factor in ADAPTIVE_SPREAD}
    thresholds |= {_threshold_for(search, forecast, plan, ratio) for ratio in SAFE}
    members = []
    for threshold in sorted(thresholds):
        member = replace(plan, threshold=threshold)
        most = search.score(Program(forecast, member), SMALL).most
        cap = max(plan.dense + 1, min(steps, math.ceil(1.25 * most)))
        members.append(replace(member, cap=cap))
    family = Family(forecast, (Everywhere(), *members), "adaptive")
    return Found(family, Program(forecast, plan))


def _largest_threshold(search: Search, forecast: AnyForecast, plan: Adaptive) -> Adaptive | None:
    """The plan with the largest threshold that keeps the tolerance, bisected in its logarithm."""
    low, high = -7.0, 2.0  # powers of ten, in units of the trajectory
    kept = None
    for _ in range(8):
        middle = (low + high) / 2
        candidate = replace(plan, threshold=10.0**middle)
        if search.score(Program(forecast, candidate), SMALL).excess <= 1.0:
            kept, low = candidate, middle
        else:
            high = middle
    return kept


def _threshold_for(search: Search, forecast: AnyForecast, plan: Adaptive, ratio: float) -> float:
    """The threshold at which the plan takes ``ratio`` times as many evaluations."""
    wanted = ratio * search.score(Program(forecast, plan), SMALL).evaluations
    low, high = -9.0, math.log10(plan.threshold)
    for _ in range(6):
        middle = (low + high) / 2
        candidate = replace(plan, threshold=10.0**middle)
        enough = search.score(Program(forecast, candidate), SMALL).evaluations >= wanted
        low, high = (middle, high) if enough else (low, middle)
    return float(10.0**low)
