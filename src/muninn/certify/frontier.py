"""The frontier: at every number of evaluations the best program of any method, on tuning calls.

Nothing here needs to be sound, only good: the certificate is valid for whatever family comes out.
The best of the published methods are fitted to the network, their anchors moved where that helps.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import measure, view_of
from muninn.certify.published import Pair, Published
from muninn.certify.scores import FAILED, Entry
from muninn.errors import InputError, MuninnError
from muninn.programs.fitting import Fitter
from muninn.programs.polishing import polished
from muninn.programs.spacing import State, sampler_states
from muninn.programs.table import Table

FITTED = ("placed^0.3", "placed^0.6", "placed^1")
"""Placed anchors that are fitted, besides those of the best published table."""

MOVES, MOST_MOVES = (2, 1), 16
"""Steps by which an anchor is moved, and how many moves are tried at one number."""

MOST_FITTED, MOST_MOVED, MOST_POLISHED = 40, 20, 8
"""Evaluations up to which tables are fitted, their anchors moved, and all their weights moved
together: beyond, none of it pays."""


def ladder(steps: int) -> list[int]:
    """Numbers of evaluations that are tried of a sampler, largest first.

    >>> ladder(100)[:8], ladder(8)
    ([98, 90, 83, 76, 70, 64, 59, 54], [7, 6, 5, 4, 3, 2])
    """
    rungs = list(range(2, 21))
    while rungs[-1] < steps:
        rungs.append(math.ceil(rungs[-1] * 1.08))
    return sorted((rung for rung in rungs if rung < steps), reverse=True)


class Frontier(Published):
    """Finds the best program of every number of evaluations; a function of its calls alone.

    Takes what :class:`muninn.certify.published.Published` takes.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._entries: dict[tuple[int, bool], Entry | None] = {}  # fitted, by number and moves
        self._others: dict[int, Entry] = {}  # published, moved

    def restricted(self, groups: Collection[str]) -> Frontier:
        """The same calls, full compute included, for some methods only."""
        known = self._journal, self._advance, self._workers
        other = Frontier(self.paired, 1.0, self.share, *known, groups=groups)
        other._tolerance = self._tolerance
        other.share_with(self)
        return other

    def share_with(self, other: Frontier) -> None:
        """Take what does not depend on methods from a frontier of the same calls."""
        for known in ("calls", "chain", "_paths", "_placing"):
            vars(self)[known] = getattr(other, known)

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
        return None if self._fitter is None else self._made("fit", base, self._fitter)

    def _made(self, verb: str, base: Table, make: Callable[[Table], tuple[Table, Tensor]]) -> Entry:
        """The table that is made of another, on the tuning calls."""
        own = hashlib.sha256(json.dumps(base.to_json()).encode()).hexdigest()[:24]
        key = f"{verb}/{self.calls}/{own}"
        stored = self._journal.get(key)
        if stored is None:
            table, reached = make(base)
            truth = self.chain.states[-1]
            bad = ~torch.isfinite(reached).flatten(1).all(dim=1)
            reached = torch.where(bad.view(-1, *[1] * (truth.ndim - 1)), truth.to(reached), reached)
            reached = reached.to(truth.dtype)
            deviation = measure(self.paired.metric, truth, reached, self.paired.context)
            excess = np.where(bad.cpu().numpy(), FAILED, deviation / self._tolerance)
            stored = [table.to_json(), excess.tolist()]
            self._journal.put(key, stored)
        self._advance(1)
        table = Table.from_json(stored[0])
        return self.scored(table, "fitted", np.array(stored[1]), len(table.states))

    def fitted(self, count: int, move: bool = True) -> Entry | None:
        """The best fitted table: from good bases, its anchors moved while that helps."""
        if (count, move) not in self._entries:
            self._entries[count, move] = self._fit_best(count, move)
        return self._entries[count, move]

    def _fit_best(self, count: int, move: bool) -> Entry | None:
        pairs = [p for p in self.candidates(count) if not self.methods[p.method].twice]
        starts: dict[tuple[State, ...], Pair] = {}
        for pair in pairs[:1]:
            states = self._spacings(self.methods[pair.method], count)[pair.spacing]
            starts |= {states: pair}
            placed = self.placed(count)
            starts |= {placed[name]: pair for name in FITTED if name in placed}
        best: tuple[Entry, Pair, tuple[State, ...]] | None = None
        for states, pair in starts.items():
            entry = self._fitted(self._based(pair, states))
            if entry is not None and (best is None or entry.score < best[0].score):
                best = entry, pair, states
        if best is None or not move:
            return None if best is None else best[0]
        entry, pair, states = best
        entry = self._moved(entry, states, lambda chosen: self._fitted(self._based(pair, chosen)))
        if count > MOST_POLISHED or self._fitter is None:
            return entry
        assert isinstance(entry.program, Table)
        own = self._made("polish", entry.program, partial(polished, self._fitter))
        return min(entry, own, key=lambda entry: entry.score)

    def _based(self, pair: Pair, states: tuple[State, ...]) -> Table:
        return self.methods[pair.method].build(self._sampler, states)

    def _moved(
        self,
        entry: Entry,
        states: tuple[State, ...],
        tried: Callable[[tuple[State, ...]], Entry | None],
    ) -> Entry:
        """Move one anchor at a time, by less and less, and keep what scores better."""
        offered = sampler_states(self._sampler)
        place = {state: at for at, state in enumerate(offered)}
        if any(state not in place for state in states) or len(states) > MOST_MOVED:
            return entry
        at, left = [place[state] for state in states], MOST_MOVES
        for move in (m for m in MOVES if m < max(2, self.steps // 8)):
            for anchor in range(len(at) - 1, 0, -1):
                for step in (move, -move):
                    moved = sorted({*at[:anchor], at[anchor] + step, *at[anchor + 1 :]})
                    if len(moved) < len(at) or not at[0] < moved[1] or moved[-1] >= len(offered):
                        continue
                    if (left := left - 1) < 0:
                        return entry
                    found = tried(tuple(offered[spot] for spot in moved))
                    if found is not None and found.score < entry.score:
                        entry, at = found, moved
        return entry

    def _moved_published(self, count: int) -> Entry:
        """The best published table, its anchors moved as those of fitted tables are."""
        if count not in self._others:
            best = self.published(count)[0]
            method, spacing = self._pair_of[best.program]
            if not self.methods[method].twice:
                states = self._spacings(self.methods[method], count)[spacing]
                group, other = best.group, Pair(method, "moved")
                best = self._moved(
                    best, states, lambda at: self.entry(self.built(other, at), group)
                )
            self._others[count] = best
        return self._others[count]

    def quick(self, count: int) -> Entry:
        """A good table with so many evaluations, at the price of one or two; for safe members."""
        states = self.placed(count).get(FITTED[1])
        if states is not None and self.fits and "sample-1-back" in self.methods:
            own = self._fitted(self._based(Pair("sample-1-back", FITTED[1]), states))
            if own is not None:
                # Where a network is rough, or calls are few, skipping steps is safer than fitting.
                first = min(self.scouted(count), key=lambda tried: self.score(tried[0]))
                if self.score(first[0]) < own.score:
                    own = min(own, self.entry(*first[1:]), key=lambda entry: entry.score)
                return own
        return self.best(count, move=False)

    def known(self, count: int) -> Entry:
        """The best table that was found so far with so many evaluations, or a quick one."""
        if count not in self._published:
            return self.quick(count)
        return self.best(count, count in self._others)

    def best(self, count: int, move: bool = True) -> Entry:
        """The best table with so many evaluations.

        Raises:
            InputError: no method has a table with so many.
        """
        found = self._all(count, move)
        if not found:
            raise InputError(f"no method here has a program with {count} evaluations")
        return min(found, key=lambda entry: entry.score)

    def _all(self, count: int, move: bool = True) -> list[Entry]:
        """The best published tables with so many evaluations, and the fitted one; with ``move``
        also with moved anchors."""
        found = [*self.published(count)] if self.methods else []
        if found and move:
            found.insert(0, self._moved_published(count))
        if self.fits and count <= MOST_FITTED:
            own = self.fitted(count, move)
            found += [] if own is None else [own]
        return found

    def report(self, count: int) -> dict[str, Any]:
        """Which method is best at a number of evaluations, and by how much."""
        groups: dict[str, float] = {}
        for entry in sorted(self._all(count), key=lambda entry: entry.excess):
            groups.setdefault(entry.group, entry.excess)
        winner = self.best(count).group
        return {"evaluations": count, "winner": winner, "excess": groups, "notes": self.notes}
