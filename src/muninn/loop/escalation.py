"""Escalation: what a robot does with a plan whose error estimate is large.

A pure state machine, the paper's (appendix "Extended runtime escalation study"). Once per planning
call :meth:`Escalation.observe` moves the mode by the call's signal, with hysteresis: the rank of
its error estimate among the calibration calls (or, in ``muninn.paper.escalation``, ``rho``).
:meth:`Escalation.step` then says what to do next: ask for a plan, execute one, or hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn.record import Record

PlanSource = Literal["cached", "resampled", "full"]
"""The certified program, the same on other noise, or full compute."""


class Mode(IntEnum):
    """How far a robot has escalated; each mode but the first is also an intervention."""

    NOMINAL = 0
    DAMP = 1
    RESAMPLE = 2
    FULL = 3


VARIANTS: dict[str, frozenset[Mode]] = {
    "muninn-only": frozenset(),
    "dampen": frozenset({Mode.DAMP}),
    "resample+dampen": frozenset({Mode.DAMP, Mode.RESAMPLE}),
    "full-override": frozenset({Mode.FULL}),
    "combined": frozenset({Mode.DAMP, Mode.RESAMPLE, Mode.FULL}),
}
"""The five variants of the paper's study: which interventions are allowed."""


@dataclass(frozen=True)
class State:
    """The mode that was entered and not yet left, and how many consecutive calls were clear."""

    mode: Mode = Mode.NOMINAL
    clear: int = 0


@dataclass(frozen=True)
class Candidate:
    """A plan as the machine sees it."""

    estimate: float  # of its error; the smallest is selected
    flaw: str | None  # why it must not be executed
    full: bool = False  # full compute's own plan: an override, or a call that fell back to it


@dataclass(frozen=True)
class Needs:
    """Worst seconds that each source of plans takes, screening included; zeros try everything."""

    cached: float = 0.0
    resampled: float = 0.0
    full: float = 0.0


@dataclass(frozen=True)
class Stage:
    """How far one planning call has come: its deadline, and the plans that came, by source."""

    deadline: float
    needs: Needs = field(default_factory=Needs)
    cached: Candidate | None = None
    resampled: tuple[Candidate, ...] = ()
    full: Candidate | None = None
    failure: str | None = None  # why it cannot go on: an exception, no answer, an old observation
    alarm: str | None = None  # why the certified program is not to be trusted: full compute instead


@dataclass(frozen=True)
class Ask:
    """Compute plans and come back: ``count`` of them, from noise of their own."""

    source: PlanSource
    count: int


@dataclass(frozen=True)
class Execute:
    """Execute the plan in a row of a source, commands times ``factor``; see :func:`damped`."""

    source: PlanSource
    row: int
    factor: float
    reason: str | None = None  # why this is less than the mode asks for


@dataclass(frozen=True)
class Hold:
    """The platform's safety action for this call: hover, stop, hold the joints."""

    reason: str


Action = Ask | Execute | Hold


def rank_of(record: Record) -> FloatArray:
    """The certified signal: rank of each row among the calibration calls, (batch,), or NaN."""
    return np.full(len(record.estimate), np.nan) if record.rank is None else record.rank


@dataclass(frozen=True)
class Escalation:
    """The machine: it computes nothing, keeps nothing and reads no clock."""

    warn: float = 0.85  # a signal above this one, or the next two, enters the mode
    resample: float = 0.95
    full: float = 0.99
    clear: float = 0.75  # after ``clear_calls`` consecutive signals up to here all modes are left
    clear_calls: int = 2
    candidates: int = 4  # plans drawn for multi-sample selection, the paper's M
    factors: tuple[float, float] = (0.7, 0.5)  # damping in the modes DAMP and RESAMPLE
    allowed: frozenset[Mode] = VARIANTS["combined"]  # interventions that are switched on
    # Where full compute is wanted and does not fit into the time left, ``damp`` executes the
    # certified plan with the stronger damping, ``hold`` holds.
    without_full: Literal["damp", "hold"] = "damp"
    signal: Callable[[Record], FloatArray] = rank_of  # of every row of a record

    def __post_init__(self) -> None:
        levels = (self.clear, self.warn, self.resample, self.full)
        counts = (self.clear_calls, self.candidates)
        if not all(map(math.isfinite, levels)) or list(levels) != sorted(levels):
            raise InputError(
                f"thresholds must be finite, clear <= warn <= resample <= full, got {levels}"
            )
        if min(counts) < 1:
            raise InputError(f"clear_calls and candidates are at least 1, got {counts}")
        if not all(0.0 < factor <= 1.0 for factor in self.factors):
            raise InputError(f"damping factors lie in (0, 1], got {self.factors}")
        if self.without_full not in ("damp", "hold"):
            raise InputError(f"without_full is 'damp' or 'hold', got {self.without_full!r}")

    def level(self, signal: float) -> Mode:
        """The mode that a signal asks for by itself; NaN asks for none."""
        return Mode((signal > self.warn) + (signal > self.resample) + (signal > self.full))

    def observe(self, state: State, signal: float) -> State:
        """The state after a call with this signal; once per call, NaN where there was none.

        >>> machine, state = Escalation(), State()
        >>> [(state := machine.observe(state, s)).mode.name for s in (0.96, 0.5, 0.8, 0.5, 0.5)]
        ['RESAMPLE', 'RESAMPLE', 'RESAMPLE', 'RESAMPLE', 'NOMINAL']
        """
        clear = min(state.clear + 1, self.clear_calls) if signal <= self.clear else 0
        if clear == self.clear_calls:
            return State(Mode.NOMINAL, clear)
        return State(max(state.mode, self.level(signal)), clear)

    def step(self, mode: Mode, call: Stage, now: float) -> Action:
        """What to do next in a call. Every path ends in Execute or Hold after at most two asks."""
        if call.failure is not None:
            return Hold(call.failure)
        if not now <= call.deadline:
            return Hold(f"the deadline passed {now - call.deadline:.3g} s ago")
        left = call.deadline - now
        late = _short("full compute", call.needs.full, left)
        fits = call.full is not None or call.needs.full <= left
        if call.alarm is not None:
            return _override(call) if fits else Hold(f"{call.alarm}; {late}")
        first = call.cached
        if first is None:
            if call.needs.cached > left:
                return Hold(_short("planning", call.needs.cached, left))
            return Ask("cached", 1)
        if first.full:
            return _execute("cached", first, 1.0)
        if mode is Mode.FULL and Mode.FULL in self.allowed:
            if fits:
                return _override(call)
            if self.without_full == "hold":
                return Hold(late)
            return _execute("cached", first, self.factors[1], late)
        reason: str | None = None
        wanted = mode >= Mode.RESAMPLE or first.flaw is not None
        if wanted and Mode.RESAMPLE in self.allowed:
            if call.resampled:
                return self._select(call.resampled)
            if call.needs.resampled <= left:
                return Ask("resampled", self.candidates)
            reason = _short("resampling", call.needs.resampled, left)
        return _execute("cached", first, self.factor(mode), reason)

    def factor(self, mode: Mode) -> float:
        """What commands of a cached plan are multiplied by in a mode."""
        if mode is Mode.NOMINAL or Mode.DAMP not in self.allowed:
            return 1.0
        return self.factors[0] if mode is Mode.DAMP else self.factors[1]

    def _select(self, candidates: tuple[Candidate, ...]) -> Action:
        """The smallest estimate among those that passed the screen; the first of equals."""
        usable = [row for row, plan in enumerate(candidates) if plan.flaw is None]
        if not usable:
            return Hold(f"none of {len(candidates)} candidates is usable: {candidates[0].flaw}")
        # A NaN estimate would win or lose by its place: it counts as the largest.
        size = [math.inf if math.isnan(plan.estimate) else plan.estimate for plan in candidates]
        row = min(usable, key=size.__getitem__)
        return Execute("resampled", row, self.factor(Mode.RESAMPLE))


def _short(what: str, needed: float, left: float) -> str:
    return f"{what} needs {needed:.3g} s and {max(left, 0.0):.3g} s are left"


def _override(call: Stage) -> Action:
    return Ask("full", 1) if call.full is None else _execute("full", call.full, 1.0, call.alarm)


def _execute(
    source: PlanSource, plan: Candidate, factor: float, reason: str | None = None
) -> Action:
    if plan.flaw is not None:
        return Hold(plan.flaw if reason is None else f"{plan.flaw}; {reason}")
    return Execute(source, 0, factor, reason)


def damped(
    command: npt.ArrayLike, factor: float, low: npt.ArrayLike, high: npt.ArrayLike
) -> FloatArray:
    """A command times the factor, then saturated elementwise to the actuators' limits.

    >>> damped([4.0, -1.0], 0.5, -1.5, 1.5).tolist()
    [1.5, -0.5]
    """
    result: FloatArray = np.clip(np.asarray(command, dtype=float) * factor, low, high)
    return result
