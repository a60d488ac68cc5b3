"""Search plans for a tolerance: every program is scored by what it does on the tuning calls."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from muninn.certify.journal import Journal
from muninn.certify.metrics import Tolerance
from muninn.certify.paired import PairedCalls
from muninn.model.sampler import Kind
from muninn.model.schedule import FloatArray
from muninn.programs import anchors
from muninn.programs.anchors import SegmentModel
from muninn.programs.forecast import ORDERS, AnyForecast, Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family, Program, Static
from muninn.progress import Advance, silent

SMALL = 32  # calls for the first rounds
MODELS = tuple(SegmentModel(f, e) for f in (0.0, 0.5, 2.0) for e in (-4.0, -2.0, 0.0, 2.0))
FIRST = SegmentModel(0.5, -2.0)
EVEN = 2  # forecasts tried with evenly spaced anchors
SAFE = (4.0, 2.2)
"""Evaluations of the first members over those of the best found: few tuning calls may mislead."""
STATIC_SPREAD = (*SAFE, 1.6, 1.3, 1.15, 1.05, 0.97, 0.88)
EMPHASES = (-4.0, -2.0, 0.0)
ADAPTIVE_SPREAD = (0.12, 0.35, 0.6, 0.8, 0.95, 1.1, 1.35)


class Score(NamedTuple):
    """Deviation over tolerance that all but the allowed share stay below; evaluations of a call."""

    excess: float
    evaluations: float  # in the mean
    most: int


class Found(NamedTuple):
    """A family and its program at which the tolerance is just kept."""

    family: Family
    program: Program


class Candidate(NamedTuple):
    """A forecast, and the way its segments are priced; None for evenly spaced anchors."""

    forecast: Forecast
    model: SegmentModel | None


class Search:
    """Scores programs on tuning calls, and finds static and adaptive families by their scores.

    A ``share`` of the calls may exceed the tolerance. The journal keeps every score, so that
    nothing runs twice; ``advance`` is told of each.
    """

    def __init__(
        self,
        paired: PairedCalls,
        tolerance: Tolerance,
        share: float,
        journal: Journal | None = None,
        advance: Advance = silent,
    ) -> None:
        self.paired = paired
        self.share = share
        self._tolerance = paired.tolerance(tolerance, list(range(paired.count)))
        self._journal = journal or Journal()
        self._advance = advance
        self._sampler = paired.planner.sampler
        self._steps = len(self._sampler)
        self._positions = anchors.anchor_positions(self._steps)
        self._plans: dict[Candidate, dict[int, list[int]]] = {}

    def score(self, program: Program, most_calls: int | None = None) -> Score:
        """Score of a program on the first ``most_calls`` tuning calls, all by default."""
        count = min(most_calls or self.paired.count, self.paired.count)
        described = {"forecast": program.forecast.to_json(), "plan": program.plan.to_json()}
        name = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
        key = f"tune/{name}/{count}"
        stored = self._journal.get(key)
        if stored is None:
            measured = self.paired.measure_in_batches(program, list(range(count)))
            excess = measured.deviation / self._tolerance[:count]
            stored = [
                # "lower": one call about to change its mode must not rank a program by itself
                float(np.quantile(excess, 1.0 - self.share, method="lower")),
                float(measured.evaluations.mean()),
                int(measured.evaluations.max()),
            ]
            self._journal.put(key, stored)
        self._advance(1)
        return Score(*stored)

    # -- static plans: shortest paths over priced segments --------------------------------------

    @cached_property
    def _grams(self) -> dict[Kind, FloatArray]:
        """Products of the predictions that full compute makes on the first calls."""
        small = list(range(min(SMALL, self.paired.count)))
        return anchors.prediction_grams(
            self.paired.planner, self.paired.contexts(small), self.paired.noise(small)
        )

    def program(self, candidate: Candidate, evaluations: int) -> Program:
        """The candidate's cheapest plan with about that many evaluations."""
        forecast, model = candidate
        if model is None:
            count = min(max(evaluations, 2), self._steps)
            return Program(forecast, Static(anchors.spread_steps(self._steps, count)))
        if candidate not in self._plans:
            gram, at = self._grams[forecast.quantity], self._positions
            costs = anchors.segment_costs(self.paired.planner, forecast, gram, at, model)
            self._plans[candidate] = anchors.cheapest_anchors(costs, at, len(at))
        plans = self._plans[candidate]
        nearest = min(plans, key=lambda count: abs(count - evaluations))
        return Program(forecast, Static(tuple(plans[nearest])))

    def rank(self) -> tuple[list[Candidate], int]:
        """The best candidate of every emphasis, best first, and the evaluations they had.

        All of them are kept: only many calls show which one loses fewest to another mode. Evenly
        spaced anchors come last: prices are of small errors, but a handful of evaluations makes
        large ones, where holding a prediction as fewer sampler steps would may be better.
        """
        start = Candidate(Forecast("sample", 1, True), FIRST)
        budget = self._bisect(start, 2, self._steps, SMALL)
        forecasts = [
            Forecast(quantity, order, look_back)
            for quantity in self._sampler.kinds
            for order in ORDERS
            for look_back in (False, True)
            if np.isfinite(self._grams[quantity]).all()
        ]
        kept = self._best([Candidate(forecast, FIRST) for forecast in forecasts], budget)[:3]
        priced = [Candidate(forecast, model) for forecast, _ in kept for model in MODELS]
        leaders: dict[float, Candidate] = {}
        for candidate in self._best(priced, budget):
            if candidate.model is not None:
                leaders.setdefault(candidate.model.emphasis, candidate)
        even = self._best([Candidate(forecast, None) for forecast in forecasts], budget)[:EVEN]
        return [*leaders.values(), *even], budget

    def static_family(self, ranked: list[Candidate], budget: int) -> Found:
        """Plans around the fewest evaluations of the best candidate that :meth:`rank` found."""
        best = ranked[0]
        fewest = self._fewest(best, self._bisect(best, 2, budget, SMALL))
        for candidate in ranked[1:]:
            if fewest > 2 and self._excess(candidate, fewest - 1) <= 1.0:
                best, fewest = candidate, self._fewest(candidate, fewest - 1)
            elif self._excess(candidate, fewest) < self._excess(best, fewest):
                best = candidate
        sizes = {min(self._steps - 1, max(2, round(fewest * f))) for f in STATIC_SPREAD}
        plans = [self.program(best, size).plan for size in sorted(sizes, reverse=True)]
        family = Family(best.forecast, (Everywhere(), *dict.fromkeys(plans)), "static")
        return Found(family, self.program(best, fewest))

    def _best(self, candidates: list[Candidate], budget: int) -> list[Candidate]:
        return sorted(candidates, key=lambda candidate: self._excess(candidate, budget, SMALL))

    def _excess(self, candidate: Candidate, evaluations: int, calls: int | None = None) -> float:
        return self.score(self.program(candidate, evaluations), calls).excess

    def _bisect(self, candidate: Candidate, low: int, high: int, calls: int | None = None) -> int:
        """Fewest evaluations in (low, high] that keep the tolerance; fine for tuning only."""
        while high - low > 1:
            middle = (low + high) // 2
            kept = self._excess(candidate, middle, calls) <= 1.0
            low, high = (low, middle) if kept else (middle, high)
        return high

    def _fewest(self, candidate: Candidate, guess: int) -> int:
        """Fewest evaluations that keep the tolerance on all tuning calls, searched from a guess."""
        low = high = min(max(guess, 3), self._steps)
        if self._excess(candidate, high) <= 1.0:
            while low > 2 and self._excess(candidate, low := max(2, int(low * 0.8))) <= 1.0:
                high = low
        else:
            while high < self._steps:
                low, high = high, min(self._steps, math.ceil(high * 1.25))
                if high == self._steps or self._excess(candidate, high) <= 1.0:
                    break
        return self._bisect(candidate, low, high)

    # -- adaptive plans: the largest threshold that keeps the tolerance, and others around it -----

    def adaptive_family(self, forecasts: Sequence[AnyForecast]) -> Found | None:
        """Thresholds around the largest one that keeps the tolerance, for the best forecast."""
        found: list[tuple[float, AnyForecast, Adaptive]] = []
        for forecast in forecasts:
            starts = {forecast.bind(self._sampler).memory}
            if self._sampler.stochastic:  # modes of a stochastic chain are decided early
                starts |= {self._steps // 5, self._steps * 2 // 5}
            for dense in sorted(start for start in starts if start + 1 < self._steps):
                for emphasis in EMPHASES:
                    gate = Adaptive(0.0, dense, emphasis=emphasis)
                    power = self._power(forecast, gate, -7.0, 2.0, 8)
                    if power > -7.0:
                        gate = replace(gate, threshold=10.0**power)
                        score = self.score(Program(forecast, gate), SMALL)
                        found.append((score.evaluations, forecast, gate))
        if not found:
            return None
        _, forecast, gate = min(found, key=lambda item: item[0])
        for _ in range(6):  # the threshold was found on few calls; make it hold on all of them
            if self.score(Program(forecast, gate)).excess <= 1.0:
                break
            gate = replace(gate, threshold=0.8 * gate.threshold)
        thresholds = {gate.threshold * factor for factor in ADAPTIVE_SPREAD}
        spent = self.score(Program(forecast, gate), SMALL).evaluations
        for ratio in SAFE:
            high = math.log10(gate.threshold)
            power = self._power(forecast, gate, -9.0, high, 6, evaluations=ratio * spent)
            thresholds.add(10.0**power)
        members = []
        for threshold in sorted(thresholds):
            member = replace(gate, threshold=threshold)
            most = self.score(Program(forecast, member), SMALL).most
            cap = max(gate.dense + 1, min(self._steps, math.ceil(1.25 * most)))
            members.append(replace(member, cap=cap))
        family = Family(forecast, (Everywhere(), *members), "adaptive")
        return Found(family, Program(forecast, gate))

    def _power(
        self,
        forecast: AnyForecast,
        gate: Adaptive,
        low: float,
        high: float,
        rounds: int,
        evaluations: float | None = None,
    ) -> float:
        """The largest power of ten as threshold that keeps the tolerance, or takes evaluations."""
        for _ in range(rounds):
            middle = (low + high) / 2
            program = Program(forecast, replace(gate, threshold=10.0**middle))
            score = self.score(program, SMALL)
            low_enough = (
                score.excess <= 1.0 if evaluations is None else score.evaluations >= evaluations
            )
            low, high = (middle, high) if low_enough else (low, middle)
        return low
