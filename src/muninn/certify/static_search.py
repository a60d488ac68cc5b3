"""Static plans for a tolerance: shortest paths over priced segments, compared by what they do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from muninn.certify.search import Search
from muninn.programs.anchors import (
    SegmentModel,
    anchor_positions,
    cheapest_anchors,
    prediction_grams,
    segment_costs,
    spread_steps,
)
from muninn.programs.forecast import ORDERS, Forecast
from muninn.programs.plan import Everywhere, Family, Program, Static

SMALL = 32  # calls for the first rounds
MODELS = tuple(SegmentModel(f, e) for f in (0.0, 0.5, 2.0) for e in (-4.0, -2.0, 0.0, 2.0))
FIRST = SegmentModel(0.5, -2.0)
EVEN = 2  # forecasts tried with evenly spaced anchors
SAFE = (4.0, 2.2)
"""Evaluations of the first members over those of the best found: what few tuning calls say may be
far off."""
STATIC_SPREAD = (*SAFE, 1.6, 1.3, 1.15, 1.05, 0.97, 0.88)


@dataclass(frozen=True)
class Found:
    """A family and its program at which the tolerance is just kept."""

    family: Family
    program: Program


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
