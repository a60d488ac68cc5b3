"""What a program is worth on tuning calls: its deviations, over the tolerance, and a rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from muninn.certify.journal import Journal
from muninn.certify.metrics import Tolerance
from muninn.certify.paired import Measured, PairedCalls
from muninn.identity.rows import row_marks
from muninn.model.schedule import FloatArray
from muninn.parallel import Map
from muninn.programs.plan import AnyProgram
from muninn.programs.second_look import judged_steps
from muninn.programs.table import Table
from muninn.progress import Advance, silent

FITTED_SHARE = 0.6
"""Of the tuning calls that tables are fitted on; the others judge."""

LEVELS = (1.0, 1.5, 2.5)
"""Shares of calls left out, over the allowed one, at which programs are compared: the promise is
about the tail, and one call must not decide."""

ON_GPU = 256
"""Tuning calls that a GPU plans together, at least: a program is tried once, so launches count."""

FAILED = 1e12
"""Excess of a call in which a program failed: what full compute did then is not to its credit."""


@dataclass(frozen=True)
class Entry:
    """A program of the frontier, and what it did on the tuning calls that it was not fitted on."""

    program: AnyProgram
    evaluations: float  # of a call, in the mean
    group: str  # of its method
    excess: float  # deviation over tolerance that all but the allowed share stay below
    score: float  # by which programs of one cost are ranked
    beyond: float  # tuning calls beyond the tolerance, as :attr:`Scores.counted` counts them
    worst: float  # excess of the worst tuning call
    kept: bool  # whether the tolerance is kept, as far as so few calls can tell
    cautious: bool = False  # does more than tuning calls ask for, which they cannot reward


class Scores:
    """Runs programs on tuning calls, each once.

    Args:
        paired: tuning calls; none of them certifies or tests.
        tolerance: of a deviation; 1 gives deviations themselves.
        share: of calls that may exceed it.
        journal: keeps every score, so that nothing runs twice.
        advance: is told of every program that was tried.
        workers: who tries them.
    """

    fits = False  # whether some programs are fitted, so that only the other calls judge
    limit = 1.0  # of the excess; another one holds the same scores against another tolerance

    def __init__(
        self,
        paired: PairedCalls,
        tolerance: Tolerance,
        share: float,
        journal: Journal | None = None,
        advance: Advance = silent,
        workers: Map | None = None,
    ) -> None:
        # Hundreds of programs run once each: not one is worth capturing or compiling.
        planner = replace(paired.planner, engine="eager")
        batch = paired.batch
        if planner.device.type == "cuda" and batch > 1:  # 1: rows may influence each other
            batch = max(batch, ON_GPU)
        self.planner = paired.planner
        self.paired = replace(paired, planner=planner, batch=batch)
        self.share = share
        self.steps = len(planner.sampler)
        self._sampler = planner.sampler
        self._tolerance = paired.tolerance(tolerance, list(range(paired.count)))
        self._journal = journal or Journal()
        self._advance = advance
        self._workers = workers or Map()
        self._measure = self.paired.measured  # one object, so that it travels once
        self._fit = round(FITTED_SHARE * paired.count)
        self._known: dict[AnyProgram, FloatArray] = {}  # excess of every entry, by program

    @cached_property
    def calls(self) -> str:
        """By which the journal knows the tuning calls: episodes that are driven again may meet
        others."""
        said = f"{self.paired.count}:{row_marks(self.paired.context)}"
        return hashlib.sha256(said.encode()).hexdigest()[:8]

    @property
    def judges(self) -> slice:
        """The calls that nothing is fitted on."""
        return (
            slice(self._fit, None) if self.fits and self._fit < self.paired.count else slice(None)
        )

    @cached_property
    def counted(self) -> FloatArray:
        """What a tuning call counts, 1 in the mean: those that nothing is fitted on for half of
        all, since tables come closer on the others."""
        counted = np.full(self.paired.count, 0.5)
        judging = len(counted[self.judges])
        counted[self.judges] += 0.5 * len(counted) / judging
        return counted

    def excess(self, program: AnyProgram, calls: int | None = None) -> FloatArray:
        """Deviation over tolerance of a program on the first calls, then its mean evaluations."""
        return np.array(self._tried(program, calls)[:-1])

    def most_evaluations(self, program: AnyProgram) -> int:
        """Of any tuning call."""
        return int(self._tried(program, None)[-1])

    def _tried(self, program: AnyProgram, calls: int | None) -> list[float]:
        """Excess of the first calls, then their evaluations: in the mean, and the most."""
        self.try_all([program], calls)
        return list(self._journal.get(self._key(program, calls)))

    def _key(self, program: AnyProgram, calls: int | None) -> str:
        count = min(calls or self.paired.count, self.paired.count)
        return f"tune/{self.calls}/{program.digest}/{count}"

    def try_all(self, programs: Iterable[AnyProgram], calls: int | None = None) -> None:
        """Run programs on the first calls, shared by workers, unless the journal knows them."""
        keys = {self._key(program, calls): program for program in programs}
        missing = {key: own for key, own in keys.items() if self._journal.get(key) is None}
        if not missing:
            return
        for part in self.paired.parts(list(range(self.paired.count))):
            self.paired.full(part)  # workers need not compute it
        parts = self.paired.parts(list(range(self.paired.count))[:calls])
        items = [(program, part) for program in missing.values() for part in parts]
        found = self._workers.map(self._measure, items)
        for key, program in missing.items():
            measured = Measured.join([next(found) for _ in parts])
            self.paired.forget(program)
            excess = measured.deviation / self._tolerance[: len(measured.deviation)]
            excess[np.isnan(measured.estimate)] = FAILED
            spent = measured.evaluations
            self._journal.put(key, [*excess.tolist(), float(spent.mean()), int(spent.max())])
            self._advance(1)

    def entry(self, program: AnyProgram, group: str) -> Entry:
        """A program on all tuning calls."""
        *excess, evaluations = self.excess(program)
        return self.scored(program, group, np.array(excess), float(evaluations))

    def scored(
        self, program: AnyProgram, group: str, excess: FloatArray, evaluations: float
    ) -> Entry:
        """A program whose excess on all tuning calls is known."""
        self._known[program] = excess
        judged = excess[self.judges]
        kept = (
            self.keeps(excess, self.counted)
            and self._quantile(judged, 1.0 - LEVELS[-1] * self.share) <= self.limit
        )
        level, score = self._quantile(judged), self.score(judged)
        beyond = float(self.counted @ (excess > self.limit))
        worst = float(excess.max())
        return Entry(program, evaluations, group, level, score, beyond, worst, kept)

    def judged(self, entry: Entry) -> Entry:
        """An entry that was found under another limit, under this one."""
        return self.scored(entry.program, entry.group, self.excess_of(entry), entry.evaluations)

    def excess_of(self, entry: Entry) -> FloatArray:
        """Deviation over tolerance of an entry on all tuning calls."""
        return self._known[entry.program]

    def differences(self, entry: Entry) -> FloatArray:
        """Error estimates of the gaps of an entry that is a table, on all calls, (calls, gaps).

        1 for calls in which it failed: full compute makes no estimate.
        """
        program = entry.program
        assert isinstance(program, Table)
        key = f"gaps/{self.calls}/{program.digest}"
        stored = self._journal.get(key)
        if stored is None:
            charged = self.paired.charged_in_batches(program)
            self.paired.forget(program)
            known = charged[:, judged_steps(self._sampler, program)]
            stored = np.nan_to_num(known, nan=1.0).tolist()
            self._journal.put(key, stored)
        return np.array(stored)

    def keeps(self, excess: FloatArray, counted: FloatArray | None = None) -> bool:
        """Whether all but the allowed share of calls keep the tolerance, judged by some of them.

        Half a violation is added: a few calls without one do not show that there are none.
        """
        beyond = np.sum(excess > self.limit) if counted is None else counted @ (excess > self.limit)
        return bool(beyond + 0.5 <= max(self.share * (len(excess) + 1.0), 0.5))

    def _quantile(self, excess: FloatArray, level: float | None = None) -> float:
        # "lower": one call about to change its mode must not rank a program by itself
        at = max(1.0 - self.share if level is None else level, 0.5)
        return float(np.quantile(excess, at, method="lower"))

    def score(self, excess: FloatArray) -> float:
        """Geometric mean of some quantiles."""
        levels = [self._quantile(excess, 1.0 - s * self.share) for s in LEVELS]
        return float(np.exp(np.mean(np.log(np.maximum(levels, 1e-12)))))
