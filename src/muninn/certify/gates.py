"""Adaptive gates as candidates of a frontier: the largest threshold that keeps the tolerance."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from muninn.certify.frontier import Frontier
from muninn.certify.scores import Entry
from muninn.programs.caches import forecast
from muninn.programs.forecast import AnyForecast, Forecast
from muninn.programs.plan import Adaptive, Program

SMALL = 32  # calls for the search of a threshold
EMPHASES = (-2.0, 0.0)
SPREAD = (0.03, 0.12, 0.35, 0.7, 1.0, 1.35)
"""Thresholds of the members over the largest that keeps the tolerance."""

MARGIN = 1.25
"""Most evaluations of a member over the most of any tuning call: a hard call needs many."""

ROUNDS = 7


def gate_members(frontier: Frontier, forecast: AnyForecast, most: float) -> list[Entry]:
    """Gates around the largest threshold that keeps the tolerance.

    Empty where no gate takes fewer evaluations than ``most``, in the mean.
    """
    sampler, steps = frontier.paired.planner.sampler, frontier.steps
    found: list[tuple[float, Adaptive]] = []
    starts = {forecast.bind(sampler).memory}
    if sampler.stochastic:  # modes of a stochastic chain are decided early
        starts.add(steps // 5)
    for dense in sorted(start for start in starts if start + 1 < min(steps, most)):
        for emphasis in EMPHASES:
            gate = _largest(frontier, forecast, Adaptive(0.0, dense, emphasis=emphasis))
            if gate is not None:
                *_, spent = frontier.excess(Program(forecast, gate), SMALL)
                found.append((float(spent), gate))
    if not found:
        return []
    spent, gate = min(found, key=lambda item: item[0])
    if spent >= most:
        return []
    members = []
    for factor in SPREAD:
        member = replace(gate, threshold=factor * gate.threshold)
        most = frontier.most_evaluations(Program(forecast, member))
        cap = max(gate.dense + 1, min(steps, math.ceil(MARGIN * most)))
        members.append(frontier.entry(Program(forecast, replace(member, cap=cap)), "gate"))
    return members


def _largest(frontier: Frontier, forecast: AnyForecast, gate: Adaptive) -> Adaptive | None:
    """The largest threshold that keeps the tolerance on the first calls, or None."""
    low, high, kept = -7.0, 2.0, None
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        tried = replace(gate, threshold=10.0**middle)
        excess = frontier.excess(Program(forecast, tried), SMALL)[:-1]
        if frontier.keeps(excess):
            low, kept = middle, tried
        else:
            high = middle
    return kept


def gate_forecast(frontier: Frontier, count: int) -> Forecast:
    """The forecast that static programs with so many evaluations do best with."""
    for pair in frontier.candidates(count) if frontier.methods else ():
        build = frontier.methods[pair.method].build
        if isinstance(build, partial) and build.func is forecast:
            return Forecast(**build.keywords)
    return Forecast("sample", 0 if frontier.paired.planner.sampler.stochastic else 2, True)
