"""Published methods as candidates: every method at every spacing, thinned by successive halving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from muninn.certify.paired import require_finite
from muninn.certify.scores import Entry, Scores
from muninn.errors import InputError
from muninn.model.sampler import Kind
from muninn.model.schedule import FloatArray
from muninn.programs import anchors
from muninn.programs.anchors import Chain, SegmentModel
from muninn.programs.fitting import overwritten
from muninn.programs.forecast import Forecast
from muninn.programs.methods import Method, methods
from muninn.programs.placing import Placing
from muninn.programs.plan import AnyProgram
from muninn.programs.spacing import State, sampler_states, spacings, trained_states
from muninn.programs.table import Table

FIRST_CALLS, MORE_CALLS = 16, 64
"""Tuning calls that candidates are thinned on, twice."""

KEPT_CALLS = 96
"""Calls whose predictions price segments and anchors."""

SCOUTS = ("sample-1-back", "dpmsolver-2", "fewsteps")
"""Methods with which spacings are tried first, as far as a sampler has them."""

KEEP_SPACINGS, KEEP, KEEP_FIRST, RUN = 4, 3, 10, 16
"""Spacings that all methods are tried with; candidates that are tried on all calls, on more than
the first, and of every group on the first. A price is a mean error and knows nothing of calls that
take another route: with two of a group instead of 16 the best tables of a planner with several
routes were never run."""

KEEP_FITTED = 2
"""Candidates that are tried on all calls where the best are fitted besides."""

MOST_PLACED = 24
"""Evaluations up to which anchors are placed by price: with many, pricing takes long."""


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
        self._set = overwritten(self.paired.planner, self.paired.contexts([0]))
        linear = self._set is not None
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
        self._pair_of: dict[AnyProgram, Pair] = {}
        self._spaced: dict[tuple[bool, int], dict[str, tuple[State, ...]]] = {}
        self._tables: dict[tuple[str, tuple[State, ...]], Table] = {}  # of the last candidates

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
            paired.remember(calls, chain.states[-1])
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

    @cached_property
    def _placing(self) -> Placing | None:
        """Prices of anchors for fitted weights; every method may evaluate there."""
        planner, fixed = self.paired.planner, self._set
        assert fixed is not None  # where states are projected no method is tried
        noise = self.paired.noise(list(range(self.paired.count)))
        try:
            return Placing(planner, self.chain, noise, ~fixed)
        except InputError as error:
            self.notes.append(f"not placed: {error}")
            return None

    def placed(self, count: int) -> dict[str, tuple[State, ...]]:
        """Names and states of anchors placed by price; none beyond :data:`MOST_PLACED`."""
        if count > MOST_PLACED or self._placing is None:
            return {}
        own = sampler_states(self._sampler)
        found = self._placing.best(count)
        return {name: tuple(own[step] for step in at) for name, at in found.items()}

    def _nodes(self, method: Method, count: int) -> tuple[list[State], int]:
        """The states that a method may visit, and how many of them; 0 if it has no such program."""
        own = sampler_states(self._sampler)
        states = own if method.on_grid else trained_states(self._sampler)
        nodes = (count + 1) // 2 if method.twice else count
        offered = 2 <= nodes <= len(states) and not (method.twice and count % 2 == 0)
        return states, nodes if offered else 0

    def _spacings(self, method: Method, count: int) -> dict[str, tuple[State, ...]]:
        """The states of every spacing for a method with so many evaluations."""
        own, states, nodes = sampler_states(self._sampler), *self._nodes(method, count)
        if not nodes:
            return {}
        if (method.on_grid, nodes) not in self._spaced:
            offered = spacings(states, nodes).items()
            found = {name: tuple(states[place] for place in at) for name, at in offered}
            for name, paths in self._paths.items():
                if nodes in paths:
                    found[name] = tuple(own[place] for place in paths[nodes])
            self._spaced[method.on_grid, nodes] = found | self.placed(nodes)
        return self._spaced[method.on_grid, nodes]

    def _table(self, method: str, states: tuple[State, ...]) -> Table:
        """The table of a method at some states."""
        if (method, states) not in self._tables:
            self._tables[method, states] = self.methods[method].build(self._sampler, states)
        return self._tables[method, states]

    def offers(self, count: int) -> bool:
        """Whether any method has a program with so many evaluations."""
        return any(self._nodes(method, count)[1] for method in self.methods.values())

    def built(self, pair: Pair, states: tuple[State, ...]) -> AnyProgram:
        """A method at some states: its table."""
        made = self._table(pair.method, states)
        return replace(made, method=f"{made.method}, {pair.spacing}")

    def _priced(self, pairs: list[Pair], count: int) -> list[tuple[float | None, Pair]]:
        """Prices of pairs without a run, each program once; None between two steps."""
        met = {}
        for pair in pairs:
            states = self._spacings(self.methods[pair.method], count).get(pair.spacing)
            if states is not None and (pair.method, states) not in met:
                table = self._table(pair.method, states)
                price = None if self._placing is None else self._placing.price(table)
                met[pair.method, states] = (price, pair)
        return list(met.values())

    def _programs(self, pairs: Iterable[Pair], count: int, calls: int) -> dict[Pair, AnyProgram]:
        """The programs of pairs, after all of them were tried on so many calls."""
        spaced = {p: self._spacings(self.methods[p.method], count)[p.spacing] for p in pairs}
        programs = {pair: self.built(pair, states) for pair, states in spaced.items()}
        self.try_all(programs.values(), calls)
        return programs

    def _ranked(self, pairs: Iterable[Pair], count: int, calls: int) -> list[Pair]:
        """Pairs by their score on so many calls, best first."""
        programs = self._programs(pairs, count, calls)
        return sorted(programs, key=lambda p: self.score(self.excess(programs[p], calls)[:-1]))

    def _halved(self, pairs: list[Pair], count: int) -> list[Pair]:
        """Pairs by their score on the first calls, best first: of every group the cheapest few, and
        those without a price."""
        chosen, spent = [], Counter[str]()
        for price, pair in sorted(self._priced(pairs, count), key=lambda priced: priced[0] or 0.0):
            group = self.methods[pair.method].group
            spent[group] += 1
            if price is None or spent[group] <= RUN:
                chosen.append(pair)
        return self._ranked(chosen, count, FIRST_CALLS)

    def candidates(self, count: int) -> list[Pair]:
        """Pairs worth trying on all calls, best first: spacings are thinned with a few methods,
        then all methods with the best spacings."""
        if count not in self._pairs:
            self._tables.clear()
            few = [name for name in SCOUTS if name in self.methods]
            scouts = few if self.fits else list(self.methods)  # one method alone: every order
            wide = [
                Pair(name, spacing)
                for name in scouts
                for spacing in self._spacings(self.methods[name], count)
            ]
            first = self._halved(wide, count)
            best = list(dict.fromkeys(pair.spacing for pair in first))[:KEEP_SPACINGS]
            pairs = [Pair(name, spacing) for spacing in best for name in self.methods]
            self._pairs[count] = self._halved_again(self._halved([*first, *pairs], count), count)
        return self._pairs[count]

    def _halved_again(self, pairs: list[Pair], count: int) -> list[Pair]:
        """The first of these, and the first of every group, by their score on more calls."""
        groups: dict[str, Pair] = {}
        for pair in pairs:
            groups.setdefault(self.methods[pair.method].group, pair)
        kept = dict.fromkeys([*pairs[:KEEP_FIRST], *groups.values()])
        return self._ranked(kept, count, MORE_CALLS)

    def scouted(self, count: int) -> list[tuple[FloatArray, AnyProgram, str]]:
        """A table of each of a few methods, its excess on the first calls, and its group."""
        found = []
        for name in [name for name in SCOUTS if name in self.methods] or list(self.methods):
            for spacing, states in list(self._spacings(self.methods[name], count).items())[:1]:
                program = self.built(Pair(name, spacing), states)
                excess = self.excess(program, FIRST_CALLS)[:-1]
                found.append((excess, program, self.methods[name].group))
        return found

    def hopeless(self, count: int) -> Entry | None:
        """A table with so many evaluations, if such tables leave most of the first calls beyond the
        tolerance; None where one of a few does not."""
        excess, program, group = min(self.scouted(count), key=lambda tried: np.median(tried[0]))
        return self.entry(program, group) if np.median(excess) > self.limit else None

    def published(self, count: int) -> list[Entry]:
        """The best tables of published methods with so many evaluations, best first."""
        if count in self._published:
            return self._published[count]
        found = []
        pairs = self.candidates(count)[: KEEP_FITTED if self.fits else KEEP]
        for pair, program in self._programs(pairs, count, self.paired.count).items():
            found.append(self.entry(program, self.methods[pair.method].group))
            self._pair_of[program] = pair
        self._published[count] = sorted(found, key=lambda entry: entry.score)
        return self._published[count]
