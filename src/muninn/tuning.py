"""Tune: find a forecast and a plan family on calls of their own, before anything is certified.

Nothing here needs to be sound, only good: the certificate is valid for whatever family comes out.
Candidates are compared by the deviation that all but a share of the tuning calls stay below.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from muninn.anchors import (
    SegmentModel,
    anchor_positions,
    cheapest_anchors,
    prediction_grams,
    segment_costs,
    spread_steps,
)
from muninn.engines import runtime_for
from muninn.errors import InputError
from muninn.forecast import ORDERS, Forecast
from muninn.journal import Journal
from muninn.metrics import Metric, Tolerance
from muninn.paired import PairedCalls
from muninn.plan import Adaptive, Everywhere, Family, Program, Static
from muninn.planner import Planner
from muninn.progress import Task, bars
from muninn.schedule import FloatArray
from muninn.search import Search

Objective = Literal["evaluations", "time"]

SMALL = 32  # calls for the first rounds
MODELS = tuple(SegmentModel(f, e) for f in (0.0, 0.5, 2.0) for e in (-4.0, -2.0, 0.0, 2.0))
FIRST = SegmentModel(0.5, -2.0)
EVEN = 2  # forecasts tried with evenly spaced anchors
EMPHASES = (-4.0, -2.0, 0.0)
SAFE = (4.0, 2.2)
"""Evaluations of the first members over those of the best found: what few tuning calls say may be
far off."""
STATIC_SPREAD = (*SAFE, 1.6, 1.3, 1.15, 1.05, 0.97, 0.88)
ADAPTIVE_SPREAD = (0.12, 0.35, 0.6, 0.8, 0.95, 1.1, 1.35)


def tune(
    planner: Planner,
    calls: object,
    *,
    tolerance: Tolerance,
    share: float = 0.03,
    metric: str | Metric = "rms_step",
    objective: Objective = "evaluations",
    seed: int = 0,
    progress: bool = True,
) -> Family:
    """A plan family for later certification, from contexts that will not be used for it.

    Args:
        planner: what will be deployed.
        calls: batched contexts, or a number of calls.
        tolerance: as in :func:`muninn.calibrate`.
        share: of calls that may exceed the tolerance; slightly below the risk to be certified.
        metric: as in :func:`muninn.calibrate`.
        objective: ``evaluations`` or measured ``time``.
        seed: of the noise.
        progress: show a progress bar.
    """
    paired = PairedCalls.for_tuning(planner, calls, metric, seed)
    with bars(progress) as task:
        return tune_family(
            paired, tolerance, share, objective=objective, journal=Journal(None, {}), task=task
        )


def tune_family(
    paired: PairedCalls,
    tolerance: Tolerance,
    share: float,
    *,
    objective: Objective,
    journal: Journal,
    task: Task,
) -> Family:
    """The family with the fewest evaluations (or the least time) at the promised deviation."""
    if objective not in ("evaluations", "time"):
        raise InputError(f"objective is 'evaluations' or 'time', got {objective!r}")
    if not 0.0 <= share < 1.0:
        raise InputError(f"share must lie in [0, 1), got {share}")
    search = Search(paired, tolerance, share, journal, task("tune: programs tried", 120))
    static = StaticSearch(search)
    ranked, budget = static.rank()
    best = static.family(ranked, budget)
    priced = [candidate.forecast for candidate in ranked if candidate.model is not None]
    forecasts = list(dict.fromkeys(priced))[:2]
    adaptive = adaptive_family(search, forecasts)
    if adaptive is None:
        return best.family
    if objective == "time":
        faster = _seconds(paired, adaptive.program) < _seconds(paired, best.program)
    else:
        faster = search.score(adaptive.program).evaluations < search.score(best.program).evaluations
    return adaptive.family if faster else best.family


@dataclass(frozen=True)
class Found:
    """A family and its program at which the tolerance is just kept."""

    family: Family
    program: Program


# -- static plans ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A forecast, and the way its segments are priced; None for evenly spaced anchors."""

    forecast: Forecast
    model: SegmentModel | None


class StaticSearch:
    """Shortest-path plans, compared by what they really do."""

    def __init__(self, search: Search) -> None:
        self.search = search
        paired = search.paired
        self._planner = paired.planner
        self._steps = len(self._planner.sampler)
        small = list(range(min(SMALL, paired.count)))
        self._grams = prediction_grams(self._planner, paired.contexts(small), paired.noise(small))
        self._positions = anchor_positions(self._steps)
        self._plans: dict[Candidate, dict[int, list[int]]] = {}

    def program(self, candidate: Candidate, evaluations: int) -> Program:
        """The candidate's cheapest plan with about that many evaluations."""
        if candidate.model is None:
            count = min(max(evaluations, 2), self._steps)
            return Program(candidate.forecast, Static(spread_steps(self._steps, count)))
        if candidate not in self._plans:
            costs = segment_costs(
                self._planner,
                candidate.forecast,
                self._grams[candidate.forecast.quantity],
                self._positions,
                candidate.model,
            )
            self._plans[candidate] = cheapest_anchors(costs, self._positions, len(self._positions))
        plans = self._plans[candidate]
        nearest = min(plans, key=lambda count: abs(count - evaluations))
        return Program(candidate.forecast, Static(tuple(plans[nearest])))

    def rank(self) -> tuple[list[Candidate], int]:
        """The best candidate of every emphasis, best first, and the evaluations they had.

        All of them are kept: which one loses fewest calls to another mode shows only on many.
        Last come evenly spaced anchors. Prices are of small errors; with a handful of evaluations
        errors are not small, and even spacing, which holds a prediction as fewer sampler steps
        would, may be better.
        """
        sampler = self._planner.sampler
        start = Candidate(Forecast("sample", 1, True), FIRST)
        budget = self._bisect(start, 2, self._steps, SMALL)
        forecasts = [
            Forecast(quantity, order, look_back)
            for quantity in sampler.kinds
            for order in ORDERS
            for look_back in (False, True)
            if np.isfinite(self._grams[quantity]).all()
        ]
        first = [Candidate(forecast, FIRST) for forecast in forecasts]
        kept = self._best(first, budget, 3)
        second = [Candidate(candidate.forecast, model) for candidate in kept for model in MODELS]
        leaders: dict[float, Candidate] = {}
        for candidate in self._best(second, budget, len(second)):
            if candidate.model is not None:
                leaders.setdefault(candidate.model.emphasis, candidate)
        even = self._best([Candidate(forecast, None) for forecast in forecasts], budget, EVEN)
        return [*leaders.values(), *even], budget

    def _best(self, candidates: list[Candidate], budget: int, keep: int) -> list[Candidate]:
        scored = [
            (self.search.score(self.program(candidate, budget), SMALL).excess, place)
            for place, candidate in enumerate(candidates)
        ]
        return [candidates[place] for _, place in sorted(scored)[:keep]]

    def _excess(
        self, candidate: Candidate, evaluations: int, most_calls: int | None = None
    ) -> float:
        return self.search.score(self.program(candidate, evaluations), most_calls).excess

    def _keeps(self, candidate: Candidate, evaluations: int, most_calls: int | None) -> bool:
        return self._excess(candidate, evaluations, most_calls) <= 1.0

    def _bisect(self, candidate: Candidate, low: int, high: int, most_calls: int | None) -> int:
        """Fewest evaluations in (low, high] that keep the tolerance; fine for tuning only."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._keeps(candidate, middle, most_calls) else (middle, high)
            )
        return high

    def _fewest(self, candidate: Candidate, guess: int) -> int:
        """Fewest evaluations that keep the tolerance on all tuning calls, searched from a guess."""
        low = high = min(max(guess, 3), self._steps)
        if self._keeps(candidate, high, None):
            while low > 2 and self._keeps(candidate, low := max(2, int(low * 0.8)), None):
                high = low
        else:
            while high < self._steps:
                low, high = high, min(self._steps, math.ceil(high * 1.25))
                if high == self._steps or self._keeps(candidate, high, None):
                    break
        return self._bisect(candidate, low, high, None)

    def family(self, ranked: list[Candidate], budget: int) -> Found:
        """Plans around the fewest evaluations of the best candidate."""
        best = ranked[0]
        fewest = self._fewest(best, self._bisect(best, 2, budget, SMALL))
        for candidate in ranked[1:]:
            if fewest > 2 and self._keeps(candidate, fewest - 1, None):
                best, fewest = candidate, self._fewest(candidate, fewest - 1)
            elif self._excess(candidate, fewest) < self._excess(best, fewest):
                best = candidate
        sizes = sorted(
            {min(self._steps - 1, max(2, round(fewest * f))) for f in STATIC_SPREAD}, reverse=True
        )
        plans = tuple(dict.fromkeys(self.program(best, size).plan for size in sizes))
        family = Family(best.forecast, (Everywhere(), *plans), "static")
        return Found(family, self.program(best, fewest))


# -- adaptive plans --------------------------------------------------------------------------


def adaptive_family(search: Search, forecasts: list[Forecast]) -> Found | None:
    """Thresholds around the largest one that keeps the tolerance, for the best forecast."""
    steps = len(search.paired.planner.sampler)
    found: list[tuple[float, Forecast, Adaptive]] = []
    for forecast in forecasts:
        starts = {max(forecast.order + 1, 2)}
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


def _largest_threshold(search: Search, forecast: Forecast, plan: Adaptive) -> Adaptive | None:
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


def _threshold_for(search: Search, forecast: Forecast, plan: Adaptive, ratio: float) -> float:
    """The threshold at which the plan takes ``ratio`` times as many evaluations."""
    wanted = ratio * search.score(Program(forecast, plan), SMALL).evaluations
    low, high = -9.0, math.log10(plan.threshold)
    for _ in range(6):
        middle = (low + high) / 2
        candidate = replace(plan, threshold=10.0**middle)
        enough = search.score(Program(forecast, candidate), SMALL).evaluations >= wanted
        low, high = (middle, high) if enough else (low, middle)
    return float(10.0**low)


def _seconds(paired: PairedCalls, program: Program) -> float:
    """Median time of a single call."""
    runtime = runtime_for(paired.planner, program)
    times: list[float] = []
    for call in range(min(7, paired.count)):
        context, noise = paired.contexts([call]), paired.noise([call])
        began = time.perf_counter()
        runtime(context, noise=noise)
        times.append(time.perf_counter() - began)
    values: FloatArray = np.array(times)
    return float(np.median(values))
