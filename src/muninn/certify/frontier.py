"""The frontier: at every number of evaluations the best program of any method, on tuning calls.

Nothing here needs to be sound, only good: the certificate is valid for whatever family comes out.
Candidates of a number of evaluations are all methods at all spacings, thinned by successive
halving; the best are fitted to the network, their anchors moved where that helps.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from muninn.certify.journal import Journal
from muninn.certify.metrics import Tolerance, measure, view_of
from muninn.certify.paired import PairedCalls, require_finite
from muninn.errors import InputError, MuninnError
from muninn.model.sampler import Kind
from muninn.model.schedule import FloatArray
from muninn.programs import anchors
from muninn.programs.anchors import Chain, SegmentModel
from muninn.programs.fitting import Fitter, overwritten
from muninn.programs.forecast import Forecast
from muninn.programs.methods import Method, methods
from muninn.programs.plan import AnyProgram
from muninn.programs.spacing import State, sampler_states, spacings, trained_states
from muninn.programs.table import Table
from muninn.progress import Advance, silent

FIRST_CALLS = 16
KEPT_CALLS = 32
"""Calls whose predictions price segments."""

SCOUTS = ("sample-1-back", "dpmsolver-2", "fewsteps")
"""Methods with which spacings are tried first, as far as a sampler has them."""

KEEP_SPACINGS, KEEP, NEXT, BASES = 3, 3, 16, 3
"""Spacings that all methods are tried with; candidates that are tried on all calls; pairs of
method and spacing that a neighbouring number of evaluations is tried with; how many are fitted."""

FITTED_SHARE = 0.6
MOVES, MOST_MOVES = (4, 2, 8, 1), {"cpu": 48, "cuda": 160}
"""Steps by which an anchor is moved, and how many moves are tried at one number, by device: about
as much time on either."""

MOST_FITTED, MOST_MOVED = 40, 20
"""Evaluations up to which tables are fitted, and their anchors moved: beyond, neither pays."""

LEVELS = (0.8, 0.9)
"""Quantiles that rank programs, besides that of the promise: one call must not decide."""


@dataclass(frozen=True)
class Entry:
    """A program of the frontier, and what it did on the tuning calls that it was not fitted on."""

    program: AnyProgram
    evaluations: float  # of a call, in the mean
    group: str  # of its method
    excess: float  # deviation over tolerance that all but the allowed share stay below
    score: float  # by which programs of one cost are ranked
    kept: bool  # whether the tolerance is kept, as far as so few calls can tell


class Pair(NamedTuple):
    """A method and a spacing, by name."""

    method: str
    spacing: str


def ladder(steps: int) -> list[int]:
    """Numbers of evaluations that are tried of a sampler, largest first.

    >>> ladder(100)
    [90, 76, 64, 54, 46, 39, 33, 28, 24, 20, 17, 15, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    """
    rungs = list(range(2, 14))
    while rungs[-1] < steps:
        rungs.append(math.ceil(rungs[-1] * 1.15))
    return sorted((rung for rung in rungs if rung < steps), reverse=True)


class Frontier:
    """Finds the best program of every number of evaluations; a function of its calls alone.

    Args:
        paired: tuning calls; none of them certifies or tests.
        tolerance: of a deviation; 1 gives deviations themselves.
        share: of calls that may exceed it.
        journal: keeps every score, so that nothing runs twice.
        advance: is told of every program that was tried.
        groups: methods to choose from, all by default; ``fitted`` is one of them.
    """

    def __init__(
        self,
        paired: PairedCalls,
        tolerance: Tolerance,
        share: float,
        journal: Journal | None = None,
        advance: Advance = silent,
        groups: Collection[str] | None = None,
    ) -> None:
        # Hundreds of programs run once each: not one is worth capturing or compiling.
        planner = replace(paired.planner, engine="eager")
        self.planner, self.paired = paired.planner, replace(paired, planner=planner)
        self.share = share
        self._tolerance = paired.tolerance(tolerance, list(range(paired.count)))
        self._journal = journal or Journal()
        self._advance = advance
        self._sampler = planner.sampler
        self.steps = len(planner.sampler)
        self._fit = round(FITTED_SHARE * paired.count)
        first = paired.contexts([0])
        linear = overwritten(planner, first) is not None
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
        self._entries: dict[tuple[int, bool], Entry | None] = {}  # fitted, by number and moves
        self._published: dict[int, list[Entry]] = {}
        self._anchors: dict[int, list[int]] = {}  # of the best fitted tables

    def restricted(self, groups: Collection[str]) -> Frontier:
        """The same calls, full compute included, for some methods only."""
        other = Frontier(self.paired, 1.0, self.share, self._journal, self._advance, groups)
        other._tolerance = self._tolerance
        vars(other)["chain"], vars(other)["_paths"] = self.chain, self._paths
        return other

    # -- scores ----------------------------------------------------------------------------------

    @property
    def judges(self) -> slice:
        """The calls that nothing is fitted on."""
        return (
            slice(self._fit, None) if self.fits and self._fit < self.paired.count else slice(None)
        )

    def excess(self, program: AnyProgram, calls: int | None = None) -> FloatArray:
        """Deviation over tolerance of a program on the first calls, then its mean evaluations."""
        count = min(calls or self.paired.count, self.paired.count)
        described = json.dumps(program.to_json(), sort_keys=True)
        key = f"tune/{hashlib.sha256(described.encode()).hexdigest()[:24]}/{count}"
        stored = self._journal.get(key)
        if stored is None:
            measured = self.paired.measure_in_batches(program, list(range(count)))
            self.paired.forget(program)
            excess = measured.deviation / self._tolerance[:count]
            stored = [*excess.tolist(), float(measured.evaluations.mean())]
            self._journal.put(key, stored)
        self._advance(1)
        return np.array(stored)

    def entry(self, program: AnyProgram, group: str) -> Entry:
        """A program on all tuning calls."""
        *excess, evaluations = self.excess(program)
        return self._entry(program, group, np.array(excess), float(evaluations))

    def _entry(
        self, program: AnyProgram, group: str, excess: FloatArray, evaluations: float
    ) -> Entry:
        judged = excess[self.judges]
        # Who changes route is seen on every call; how close the others come, not where it was
        # fitted.
        kept = self.keeps(excess) and self.keeps(judged)
        level, score = self._quantile(judged), self.score(judged)
        return Entry(program, evaluations, group, level, score, kept)

    def keeps(self, excess: FloatArray) -> bool:
        """Whether all but the allowed share of calls keep the tolerance, judged by some of them.

        Half a violation is added: a few calls without one do not show that there are none.
        """
        beyond = np.count_nonzero(excess > 1.0)
        return bool(beyond + 0.5 <= max(self.share * (len(excess) + 1.0), 0.5))

    def _quantile(self, excess: FloatArray, level: float | None = None) -> float:
        # "lower": one call about to change its mode must not rank a program by itself
        at = 1.0 - self.share if level is None else level
        return float(np.quantile(excess, at, method="lower"))

    def score(self, excess: FloatArray) -> float:
        """Geometric mean of some quantiles."""
        levels = [self._quantile(excess), *(self._quantile(excess, level) for level in LEVELS)]
        return float(np.exp(np.mean(np.log(np.maximum(levels, 1e-12)))))

    # -- tables of published methods -------------------------------------------------------------

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
        if near is not None and abs(math.log(near / count)) < 0.7:
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

    # -- fitted tables ---------------------------------------------------------------------------

    @cached_property
    def _fitter(self) -> Fitter | None:
        """Fits tables on the first tuning calls, or says in a note why not."""
        paired, calls = self.paired, list(range(self.paired.count))
        chain, view = self.chain.states, view_of(paired.metric)
        try:
            return Fitter(
                paired.planner,
                paired.context,
                paired.noise(calls),
                chain,
                self._fit,
                view,
                paired.batch,
            )
        except MuninnError as error:
            self.notes.append(f"not fitted: {error}")
            return None

    def _fitted(self, base: Table) -> Entry | None:
        """A base table, fitted; its score is from calls that are not fitted on."""
        if self._fitter is None:
            return None
        key = f"fit/{hashlib.sha256(json.dumps(base.to_json()).encode()).hexdigest()[:24]}"
        stored = self._journal.get(key)
        if stored is None:
            table, reached = self._fitter(base)
            truth = self.chain.states[-1]
            bad = ~torch.isfinite(reached).flatten(1).all(dim=1)
            reached = torch.where(bad.view(-1, *[1] * (truth.ndim - 1)), truth.to(reached), reached)
            deviation = measure(self.paired.metric, truth, reached.to(truth.dtype))
            excess = np.where(bad.cpu().numpy(), 1e12, deviation / self._tolerance)
            stored = [table.to_json(), excess.tolist()]
            self._journal.put(key, stored)
        self._advance(1)
        table = Table.from_json(stored[0])
        return self._entry(table, "fitted", np.array(stored[1]), len(table.states))

    def fitted(self, count: int, move: bool = True) -> Entry | None:
        """The best fitted table: from good bases, its anchors moved while that helps."""
        if (count, move) not in self._entries:
            self._entries[count, move] = self._fit_best(count, move)
        return self._entries[count, move]

    def _fit_best(self, count: int, move: bool) -> Entry | None:
        own = sampler_states(self._sampler)
        pairs = [p for p in self.candidates(count) if not self.methods[p.method].twice]
        starts: dict[tuple[State, ...], Pair] = {}
        for pair in pairs:
            states = self._spacings(self.methods[pair.method], count)[pair.spacing]
            if len(starts) < BASES:
                starts.setdefault(states, pair)
        if move and pairs:
            for at in self._neighbours(count):
                starts.setdefault(tuple(own[step] for step in at), pairs[0])
        best: tuple[Entry, Pair, tuple[State, ...]] | None = None
        for states, pair in starts.items():
            entry = self._fitted(self._based(pair, states))
            if entry is not None and (best is None or entry.score < best[0].score):
                best = entry, pair, states
        if best is None or not move or count > MOST_MOVED:
            return None if best is None else best[0]
        return self._moved(*best)

    def _neighbours(self, count: int) -> list[list[int]]:
        """The best anchors of one evaluation more without one of them, and of one evaluation less
        with one more in the middle of a gap."""
        more, less = self._anchors.get(count + 1, []), self._anchors.get(count - 1, [])
        found = [more[:place] + more[place + 1 :] for place in range(1, len(more))]
        for first, second in itertools.pairwise([*less, self.steps] if less else []):
            if second - first > 1:
                found.append(sorted([*less, (first + second) // 2]))
        return found

    def _based(self, pair: Pair, states: tuple[State, ...]) -> Table:
        return self.methods[pair.method].build(self._sampler, states)

    def _moved(self, entry: Entry, pair: Pair, states: tuple[State, ...]) -> Entry:
        """Move one anchor at a time, by less and less, and keep what scores better."""
        offered = sampler_states(self._sampler)
        place = {state: at for at, state in enumerate(offered)}
        if any(state not in place for state in states):
            return entry
        at, left = [place[state] for state in states], MOST_MOVES.get(self.planner.device.type, 48)
        self._anchors[len(at)] = at
        for move in (m for m in MOVES if m < max(2, self.steps // 8)):
            for anchor in range(len(at) - 1, 0, -1):
                for step in (move, -move):
                    moved = sorted({*at[:anchor], at[anchor] + step, *at[anchor + 1 :]})
                    if len(moved) < len(at) or not at[0] < moved[1] or moved[-1] >= len(offered):
                        continue
                    if (left := left - 1) < 0:
                        return entry
                    chosen = tuple(offered[spot] for spot in moved)
                    found = self._fitted(self._based(pair, chosen))
                    if found is not None and found.score < entry.score:
                        entry, at = found, moved
                        self._anchors[len(at)] = at
        return entry

    # -- the frontier ----------------------------------------------------------------------------

    def quick(self, count: int) -> Entry:
        """A good table with so many evaluations, from what was best nearby; for safe members."""
        near = min(self._pairs, key=lambda known: abs(math.log(known / count)))
        for pair in self._pairs[near]:
            method = self.methods[pair.method]
            states = self._spacings(method, count).get(pair.spacing)
            if states is not None and not method.twice:
                fits = self.fits and count <= MOST_FITTED
                own = self._fitted(self._based(pair, states)) if fits else None
                return own or self.entry(self.built(pair, states), method.group)
        return self.best(count, move=False)

    def best(self, count: int, move: bool = True) -> Entry:
        """The best table with so many evaluations.

        Raises:
            InputError: no method has a table with so many.
        """
        found = [*self.published(count)] if self.methods else []
        if self.fits and count <= MOST_FITTED:
            own = self.fitted(count, move)
            found += [] if own is None else [own]
        if not found:
            raise InputError(f"no method here has a program with {count} evaluations")
        return min(found, key=lambda entry: entry.score)

    def report(self, count: int) -> dict[str, Any]:
        """Which method is best at a number of evaluations, and by how much."""
        entries = [*self.published(count)]
        if self.fits and count <= MOST_FITTED and (own := self.fitted(count)) is not None:
            entries.append(own)
        groups: dict[str, float] = {}
        for entry in sorted(entries, key=lambda entry: entry.excess):
            groups.setdefault(entry.group, entry.excess)
        return {"evaluations": count, "excess": groups, "notes": self.notes}
