"""Published methods as candidates: every method at every spacing, thinned by successive halving."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from muninn.certify.paired import require_finite
from muninn.certify.scores import Entry, Scores
from muninn.model.sampler import Kind
from muninn.programs import anchors
from muninn.programs.anchors import Chain, SegmentModel
from muninn.programs.fitting import overwritten
from muninn.programs.forecast import Forecast
from muninn.programs.methods import Method, methods
from muninn.programs.plan import AnyProgram
from muninn.programs.spacing import State, sampler_states, spacings, trained_states

FIRST_CALLS = 16
KEPT_CALLS = 32
"""Calls whose predictions price segments."""

SCOUTS = ("sample-1-back", "dpmsolver-2", "fewsteps")
"""Methods with which spacings are tried first, as far as a sampler has them."""

FAR = 1.5
"""In the logarithm of the evaluations: what was best there is no guide."""

KEEP_SPACINGS, KEEP, NEXT = 3, 3, 16
"""Spacings that all methods are tried with; candidates that are tried on all calls; pairs of
method and spacing that a neighbouring number of evaluations is tried with."""


class Pair(NamedTuple):
    """A method and a spacing, by name."""

    method: str
    spacing: str


class Published(Scores):
    """The best tables of published methods at every number of evaluations.

    Takes what :class:`muninn.certify.scores.Scores` takes, and ``groups``: the methods to choose
    from, all by default; ``fitted`` is one of them.
    """

    def __init__(self, *given: Any, groups: Collection[str] | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        linear = overwritten(self.paired.planner, self.paired.contexts([0])) is not None
        self.methods = {
            name: method
            for name, method in (methods(self._sampler) if linear else {}).items()
            if groups is None or name in groups or method.group in groups or "fitted" in groups
        }
        self.fits = linear and (groups is None or "fitted" in groups)
        self.notes: list[str] = []
        if not linear:
            self.notes.append("the condition projects states, so that no table was tried")
        self._pairs: dict[int, list[Pair]] = {}  # best first, by number of evaluations
        self._published: dict[int, list[Entry]] = {}

    @cached_property
    def chain(self) -> Chain:
        """Full compute on the tuning calls; their trajectories are the truth, where no other is."""
        paired = self.paired
        calls = list(range(paired.count))
        chain = anchors.full_chain(
            paired.planner, paired.context, paired.noise(calls), KEPT_CALLS, paired.batch
        )
        if paired.reference is None:
            require_finite(chain.states[-1])
            paired.known.update(zip(calls, chain.states[-1].unbind(0), strict=True))
        else:
            chain = replace(chain, states=torch.cat([chain.states[:-1], paired.full(calls)[None]]))
        return chain

    @cached_property
    def _paths(self) -> dict[str, dict[int, list[int]]]:
        """Shortest paths over priced segments, by name and number of evaluations."""
        planner = self.paired.planner
        grams = anchors.prediction_grams(planner, self.chain)
        at = anchors.anchor_positions(self.steps)
        held: Kind = "velocity" if self._sampler.flow else "epsilon"
        found = {}
        for forecast in (Forecast("sample", 1, True), Forecast(held, 0, False)):
            if not np.isfinite(grams[forecast.quantity]).all():
                continue
            for emphasis in (-2.0, 0.0):
                model = SegmentModel(0.5, emphasis)
                costs = anchors.segment_costs(
                    planner, forecast, grams[forecast.quantity], at, model
                )
                name = f"shortest path {forecast.quantity} {emphasis:g}"
                found[name] = anchors.cheapest_anchors(costs, at, len(at))
        return found

    def _spacings(self, method: Method, count: int) -> dict[str, tuple[State, ...]]:
        """The states of every spacing for a method with so many evaluations."""
        own = sampler_states(self._sampler)
        states = own if method.on_grid else trained_states(self._sampler)
        nodes = (count + 1) // 2 if method.twice else count
        if nodes < 2 or nodes > len(states) or (method.twice and count % 2 == 0):
            return {}
        found = {name: tuple(states[p] for p in at) for name, at in spacings(states, nodes).items()}
        for name, paths in self._paths.items():
            if nodes in paths:
                found[name] = tuple(own[place] for place in paths[nodes])
        return found

    def offers(self, count: int) -> bool:
        """Whether any method has a program with so many evaluations."""
        return any(self._spacings(method, count) for method in self.methods.values())

    def built(self, pair: Pair, states: tuple[State, ...]) -> AnyProgram:
        """A method at some states: its table."""
        made = self.methods[pair.method].build(self._sampler, states)
        return replace(made, method=f"{made.method}, {pair.spacing}")

    def _halved(self, pairs: list[Pair], count: int, keep: int) -> list[Pair]:
        """The best pairs on the first calls."""
        scored: list[tuple[float, int, Pair]] = []
        met = set()
        for pair in pairs:
            states = self._spacings(self.methods[pair.method], count).get(pair.spacing)
            if states is not None and (pair.method, states) not in met:
                met.add((pair.method, states))
                excess = self.excess(self.built(pair, states), FIRST_CALLS)[:-1]
                scored.append((self.score(excess), len(scored), pair))
        return [pair for *_, pair in sorted(scored)[:keep]]

    def candidates(self, count: int) -> list[Pair]:
        """Pairs worth trying on all calls: thinned from all, or what was best nearby."""
        if count in self._pairs:
            return self._pairs[count]
        near = min(self._pairs, key=lambda known: abs(math.log(known / count)), default=None)
        if near is not None and abs(math.log(near / count)) < FAR:
            pairs = self._pairs[near][:NEXT]
        else:
            scouts = [name for name in SCOUTS if name in self.methods] or list(self.methods)[:1]
            wide = [
                Pair(name, spacing)
                for name in scouts
                for spacing in self._spacings(self.methods[name], count)
            ]
            best = list(
                dict.fromkeys(pair.spacing for pair in self._halved(wide, count, len(wide)))
            )
            pairs = [Pair(m, spacing) for spacing in best[:KEEP_SPACINGS] for m in self.methods]
            pairs += [Pair(name, spacing) for name in scouts for spacing in best]
        self._pairs[count] = self._halved(pairs, count, NEXT)
        return self._pairs[count]

    def published(self, count: int) -> list[Entry]:
        """The best tables of published methods with so many evaluations, best first."""
        if count in self._published:
            return self._published[count]
        found = []
        for pair in self.candidates(count)[:KEEP]:
            method = self.methods[pair.method]
            program = self.built(pair, self._spacings(method, count)[pair.spacing])
            found.append(self.entry(program, method.group))
        self._published[count] = sorted(found, key=lambda entry: entry.score)
        return self._published[count]
