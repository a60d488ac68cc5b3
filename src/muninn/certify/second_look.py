"""Second looks as candidates of a frontier: which two programs, and which calls are in doubt.

All is read off what tables did on tuning calls: no program runs for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from muninn.certify.frontier import MOST_FITTED, Frontier
from muninn.certify.scores import Entry
from muninn.model.schedule import FloatArray
from muninn.programs.plan import Program
from muninn.programs.second_look import TINY, SecondLook
from muninn.programs.table import Table

TARGETS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15, 1.3)
"""Calls beyond the tolerance that a member is tuned to, over the allowed number."""

CAUTIOUS = (4, 2)
"""Calls that the first members plan again, in full, over those that tuning calls ask for."""

SECOND = (1.0, 1.25, 1.5, 2.0, 2.5)
"""Evaluations of second tables over the fewest that one table needs."""

RIDGE = 1e-2
SMALLEST, LARGEST = 1e-4, 1e4
"""Excess between which doubt is fitted: beyond, more or less says nothing."""


@dataclass(frozen=True)
class _Pair:
    """Two tables, and how many calls stay beyond the tolerance if the m most doubtful are planned
    again, m = 0, 1, ..."""

    first: Entry
    second: Entry
    weights: FloatArray
    doubt: FloatArray  # most doubtful call first
    beyond: FloatArray

    def planned_again(self, allowed: float) -> int | None:
        """The fewest calls that leave at most so many beyond the tolerance."""
        enough = np.flatnonzero(self.beyond <= allowed)
        return int(enough[0]) if enough.size else None

    def cost(self, allowed: float) -> float:
        """Evaluations in the mean; infinite if so few cannot be reached."""
        again = self.planned_again(allowed)
        share = math.inf if again is None else again / len(self.doubt)
        return self.first.evaluations + share * self.second.evaluations

    def member(self, frontier: Frontier, again: int) -> Entry:
        """The second look that plans so many tuning calls again, or the first table if none."""
        if not again:
            return self.first
        limit = float(self.doubt[again - 1 : again + 1].mean())
        if again < len(self.doubt) and self.doubt[again - 1] == self.doubt[again]:
            limit = math.nextafter(limit, -math.inf)  # all that are equally in doubt
        assert isinstance(self.first.program, Table)
        program = SecondLook(self.first.program, self.second.program, tuple(self.weights), limit)
        doubtful = program.doubtful(frontier.differences(self.first))
        excess = np.where(doubtful, *map(frontier.excess_of, (self.second, self.first)))
        spent = self.first.evaluations + float(doubtful.mean()) * self.second.evaluations
        return frontier.scored(program, "second look", excess, spent)


def look_members(frontier: Frontier, rungs: Sequence[int], fewest: int) -> list[Entry]:
    """The cheapest second look, or table, for each of :data:`TARGETS`.

    ``rungs`` are numbers of evaluations on offer, ``fewest`` those that one table needs.
    """
    seconds = {min(rungs, key=lambda rung: abs(rung - factor * fewest)) for factor in SECOND}
    seconds = {rung for rung in seconds if rung <= max(MOST_FITTED, fewest)}
    firsts = {rung for rung in rungs if rung <= fewest}
    tables = {
        rung: entry
        for rung in sorted(firsts | seconds)
        if isinstance((entry := frontier.known(rung)).program, Table)
    }
    kind, calls = frontier.paired.planner.sampler.kind, frontier.paired.count
    full = frontier.scored(Program.full(kind), "full", np.zeros(calls), float(frontier.steps))
    pairs = [
        pair
        for rung in sorted(firsts & tables.keys())
        for pair in _pairs(frontier, tables[rung], [*(tables[k] for k in tables if k > rung), full])
    ]
    if not pairs:
        return []
    members: list[Entry] = []
    for target in TARGETS:
        allowed = target * frontier.share * frontier.paired.count
        pair = min(pairs, key=lambda pair: pair.cost(allowed))
        again = pair.planned_again(allowed)
        if again is None:
            continue
        if not members:
            # Few calls do not tell where doubt should begin, nor what is safe in doubt.
            safe = min((p for p in pairs if p.second is full), key=lambda pair: pair.cost(allowed))
            for factor in CAUTIOUS:
                more = min(factor * (safe.planned_again(allowed) or 1), len(safe.doubt))
                members.append(replace(safe.member(frontier, more), cautious=True))
        members.append(pair.member(frontier, again))
    return members


def _pairs(frontier: Frontier, first: Entry, seconds: Sequence[Entry]) -> list[_Pair]:
    """A first table with each of the second ones; its doubt predicts its excess."""
    known = np.log(frontier.differences(first) + TINY)
    excess = frontier.excess_of(first)
    target = np.log(np.clip(excess / frontier.limit, SMALLEST, LARGEST))
    centred = known - known.mean(axis=0)
    gram = centred.T @ centred
    ridge = RIDGE * max(float(np.trace(gram)) / len(gram), TINY) * np.eye(len(gram))
    weights = np.linalg.solve(gram + ridge, centred.T @ (target - target.mean()))
    doubt = known @ weights
    order = np.argsort(-doubt, kind="stable")
    found = []
    for second in seconds:
        missed = [
            frontier.counted * (frontier.excess_of(entry) > frontier.limit)
            for entry in (first, second)
        ]
        sums = [np.concatenate([[0.0], np.cumsum(each[order])]) for each in missed]
        beyond = sums[0][-1] - sums[0] + sums[1]
        found.append(_Pair(first, second, weights, doubt[order], beyond))
    return found
