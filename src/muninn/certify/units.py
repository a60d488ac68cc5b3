"""Units of exchange: the calls or episodes over which a promise averages.

A unit is measured under a program and yields one :class:`Outcome`. Open loop: contexts are given.
Closed loop: the program drives the episode itself, with full compute shadowed at every call,
because a cached policy visits other states than the full one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric, Tolerance, measure, tolerances, tuning_metric
from muninn.certify.paired import PairedCalls, Runtimes, call_seed, full_compute
from muninn.certify.sources import gather
from muninn.context import Context, batch_size, concatenate, form, require_rows, select
from muninn.errors import InputError
from muninn.identity.arithmetic import Arithmetic, arithmetic
from muninn.identity.digest import digest
from muninn.model.planner import Noise, Planner
from muninn.programs.plan import AnyProgram

UnitName = Literal["call", "episode"]
PlanFunction = Callable[[Context], Tensor]


@dataclass(frozen=True)
class Episodes:
    """Closed-loop episodes that a program drives itself.

    Attributes:
        drive: ``drive(plan, seed)`` runs one episode from a seed and calls ``plan(context)``
            (context of one row, trajectory of one row) whenever the robot plans.
        count: how many episodes may be run.
    """

    drive: Callable[[PlanFunction, int], None]
    count: int


@dataclass(frozen=True)
class Outcome:
    """Calls of one unit under one program: one number per call."""

    deviation: list[float]  # from full compute, in the metric
    tolerance: list[float]
    estimate: list[float]  # accumulated error estimate
    evaluations: list[int]  # of the denoiser

    @property
    def excess(self) -> float:
        """Worst deviation over tolerance; above 1 the unit violates."""
        return max(d / t for d, t in zip(self.deviation, self.tolerance, strict=True))


@dataclass(eq=False)
class OpenLoop:
    """Units made of given contexts: single calls, or episodes of recorded calls."""

    paired: PairedCalls
    tolerance: Tolerance
    unit: UnitName
    episode_of: Sequence[int] | None
    loop: ClassVar[str] = "open"

    def __post_init__(self) -> None:
        count, labels = self.paired.count, self.episode_of
        if self.unit == "episode" and (labels is None or len(labels) != count):
            raise InputError(
                "unit='episode' with given contexts needs episode_of, one episode number per call "
                f"({count} calls)"
            )
        if self.unit == "call" and labels is not None:
            # A random call of each episode: calls inside one episode are not exchangeable.
            raise InputError(
                "unit='call' takes independent calls; for calls recorded in episodes use "
                "unit='episode', or keep one random call of each episode"
            )
        self._calls = [[call] for call in range(count)]
        if labels is not None:
            of = np.asarray(labels)
            self._calls = [np.flatnonzero(of == label).tolist() for label in np.unique(of)]
        self.known = self.paired.known  # full trajectories, as far as they were computed
        self.form: dict[str, Any] | None = form(self.paired.context)
        self.count = len(self._calls)
        self.chunk = max(1, self.paired.batch // max(len(calls) for calls in self._calls))

    def measure(self, program: AnyProgram, units: Sequence[int]) -> list[Outcome]:
        """Outcomes of some units, in order, their calls run in batches."""
        calls = [call for unit in units for call in self._calls[unit]]
        measured = self.paired.measure_in_batches(program, calls)
        tolerance = self.paired.tolerance(self.tolerance, calls)
        ends = np.cumsum([len(self._calls[unit]) for unit in units])[:-1]
        arrays = measured.deviation, tolerance, measured.estimate, measured.evaluations
        of_units = zip(*(np.split(values, ends) for values in arrays), strict=True)
        return [Outcome(*(part.tolist() for part in parts)) for parts in of_units]

    def rows(self, units: Sequence[int]) -> Context:
        """By which some units are known again: the contexts of their calls."""
        if len(units) == self.count:  # not a copy of all: contexts may be images
            return self.paired.context
        return self.paired.contexts([call for unit in units for call in self._calls[unit]])

    def full_of(self, units: Sequence[int]) -> dict[int, Tensor]:
        """Full trajectories of some units' calls, as far as they are known."""
        calls = [call for unit in units for call in self._calls[unit]]
        return {call: self.known[call] for call in calls if call in self.known}

    def identity(self) -> dict[str, Any]:
        """Content of the calls, JSON-ready, for the journal."""
        grouping = hashlib.sha256(repr(self._calls).encode()).hexdigest()[:16]
        calls = digest(self.paired.context, "the context")
        return {"calls": calls, "count": self.count, "units": grouping}

    def examples(self, count: int) -> tuple[Context, Noise]:
        """Contexts spread over all calls, with noise of their own, to examine the planner."""
        paired = self.paired
        places = np.linspace(0, paired.count - 1, count).round().astype(int).tolist()
        seeds = [call_seed(paired.seed, 2, place) for place in range(count)]
        return paired.contexts(places), paired.planner.draw_noise(seeds=seeds)

    def for_tuning(self, units: Sequence[int]) -> PairedCalls:
        """The calls of the tuning units, with noise of their own."""
        calls = [call for unit in units for call in self._calls[unit]]
        seed, context = call_seed(self.paired.seed, 1), self.paired.contexts(calls)
        metric = tuning_metric(self.paired.metric)
        count = len(calls)
        return replace(
            self.paired, context=context, count=count, seed=seed, metric=metric, known={}
        )


def require_one_row(context: Context) -> None:
    """Raise InputError unless a context is that of one call."""
    if batch_size(context) not in (None, 1):
        raise InputError("an episode plans one call at a time: a context of one row")


def require_arithmetic(began: Arithmetic, planner: Planner) -> None:
    """A certificate holds for one arithmetic: that of every call it was made from."""
    here = arithmetic(planner.device)
    if here != began:
        raise InputError(
            f"an episode planned with arithmetic {here or 'plain'}, calibration began with "
            f"{began or 'plain'}; put autocast around calibrate as well, and set TF32 switches "
            "before it"
        )


def require_form(known: dict[str, Any] | None, context: Context) -> None:
    """A certificate holds for contexts of one form; None before it is known."""
    if known is not None and form(context) != known:
        raise InputError(
            f"an episode planned with a context of another form, {form(context)}, than {known} "
            "before; a certificate needs contexts of one form (pad what varies in length)"
        )


@dataclass(eq=False)
class ClosedLoop:
    """Units made of episodes that each program drives itself."""

    planner: Planner
    episodes: Episodes
    metric: Metric
    tolerance: Tolerance
    unit: UnitName
    seed: int
    reference: Planner
    form: dict[str, Any] | None = None  # of every context, known after the examples
    loop: ClassVar[str] = "closed"
    chunk: ClassVar[int] = 1
    known: ClassVar[dict[int, Tensor]] = {}

    def __post_init__(self) -> None:
        self.count = self.episodes.count
        if self.count < 1:
            raise InputError(f"need at least one episode, got {self.count}")
        self._arithmetic = arithmetic(self.planner.device)
        self._runtimes = Runtimes(self.planner)

    def measure(self, program: AnyProgram, units: Sequence[int]) -> list[Outcome]:
        """Outcomes of some episodes, in order, each driven by ``program``."""
        return [self._episode(program, unit) for unit in units]

    def _episode(self, program: AnyProgram, unit: int) -> Outcome:
        outcome, runtime = Outcome([], [], [], []), self._runtimes[program]

        def plan(context: Context) -> Tensor:
            require_one_row(context)
            require_arithmetic(self._arithmetic, self.planner)
            require_form(self.form, context)
            seed = call_seed(self.seed, unit, len(outcome.deviation))
            noise = self.planner.draw_noise(seeds=[seed])
            full = full_compute(self.reference, context, noise)
            trajectory, record = runtime(context, noise=noise)
            deviation = measure(self.metric, full, trajectory.to(full.dtype), context)
            outcome.deviation.extend(deviation.tolist())
            outcome.tolerance.extend(tolerances(self.tolerance, context, 1).tolist())
            outcome.estimate.extend(record.estimate.tolist())
            outcome.evaluations.extend(record.evaluations.tolist())
            return trajectory

        self.episodes.drive(plan, call_seed(self.seed, unit))
        if not outcome.deviation:
            raise InputError(f"episode {unit} ended without planning once; check drive()")
        if self.unit == "episode":
            return outcome
        # A random call of a random episode; the same draw for every program.
        draw = np.random.default_rng(call_seed(self.seed, unit, 1, 1)).random()
        chosen = int(draw * len(outcome.deviation))
        return Outcome(*([values[chosen]] for values in asdict(outcome).values()))

    def rows(self, units: Sequence[int]) -> Context:
        """By which some units are known again: the seeds of their episodes."""
        seeds = [[call_seed(self.seed, unit) / 2**63] for unit in units]
        return torch.tensor(seeds, dtype=torch.float64)

    def full_of(self, units: Sequence[int]) -> dict[int, Tensor]:
        """None: every program meets states of its own."""
        return {}

    def identity(self) -> dict[str, Any]:
        """The driver, with all that it reads, JSON-ready, for the journal."""
        return {"episodes": digest(self.episodes.drive, "drive"), "count": self.count}

    def examples(self, count: int) -> tuple[Context, Noise]:
        """Contexts of one more episode, driven by full compute; repeated where they are few."""
        met: list[Context] = []
        self.episodes.drive(self._full_planner(met, 1), call_seed(self.seed, self.count, 1, 1))
        if not met:
            raise InputError("an episode ended without planning once; check drive()")
        self.form = form(met[0])
        chosen = [met[place % len(met)] for place in range(count)]
        seeds = [call_seed(self.seed, self.count, 1, 2, place) for place in range(count)]
        return concatenate(chosen), self.planner.draw_noise(seeds=seeds)

    def _full_planner(self, met: list[Context], *stream: int) -> PlanFunction:
        """Full compute; the contexts that it meets are added to a list."""

        def plan(context: Context) -> Tensor:
            require_arithmetic(self._arithmetic, self.planner)
            # Not (seed, unit, call): no certify episode may share its noise with tuning.
            seed = call_seed(self.seed, self.count, *stream, len(met))
            met.append(select(context, torch.arange(1, device="cpu")))  # simulators reuse buffers
            return self.planner.sample(context, noise=self.planner.draw_noise(seeds=[seed]))

        return plan

    def for_tuning(self, units: Sequence[int]) -> PairedCalls:
        """Contexts met while full compute drives the tuning episodes."""
        met: list[Context] = []
        plan = self._full_planner(met)
        for unit in units:
            self.episodes.drive(plan, call_seed(self.seed, unit))
        seed = call_seed(self.seed, 1)
        metric, context = tuning_metric(self.metric), concatenate(met)
        return PairedCalls(self.planner, context, len(met), metric, seed, reference=self.reference)


Units = OpenLoop | ClosedLoop
"""A numbered set of units that can be measured under any program."""


def units_of(
    planner: Planner,
    calls: Context | Episodes | int,
    metric: Metric,
    tolerance: Tolerance,
    unit: UnitName,
    episode_of: Sequence[int] | None,
    seed: int,
    batch: int,
    reference: Planner | None,
) -> Units:
    """The units of the calls that a user gives, as in :func:`muninn.calibrate`.

    Raises:
        InputError: there is no call, or contexts do not have one row per call.
    """
    if isinstance(calls, Iterator):
        calls = gather(calls)
    if isinstance(calls, Episodes):
        return ClosedLoop(planner, calls, metric, tolerance, unit, seed, reference or planner)
    if calls is None or (isinstance(calls, int) and calls < 1):
        raise InputError(
            "calls holds no call; give batched contexts (one row per call), Episodes, or a number "
            "of calls for a planner without context"
        )
    context, count = (None, calls) if isinstance(calls, int) else (calls, require_rows(calls))
    paired = PairedCalls(
        planner, context, count, metric, call_seed(seed, 0), reference=reference, batch=batch
    )
    return OpenLoop(paired, tolerance, unit, episode_of)
