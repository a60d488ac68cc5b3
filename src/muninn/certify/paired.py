"""Paired runs: a program and full compute on the same calls with the same noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from muninn.certify.metrics import (
    Metric,
    Tolerance,
    measure,
    resolve,
    takes_context,
    tolerances,
)
from muninn.context import Context, batch_size, select
from muninn.engines.choose import runtime_for
from muninn.engines.runtime import Runtime
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.programs.plan import AnyProgram
from muninn.record import Record

DRAWN = 16
"""Batches whose noise is kept: that of a stochastic sampler takes longer to draw than to use."""


def call_seed(seed: int, *position: int) -> int:
    """Seed of one call's noise, independent of batch, split and order.

    The length is hashed too: a SeedSequence pads with zeros, so that an episode's own seed would
    else be the seed of its first call, and a world drawn from it would know the noise.
    """
    entropy = np.random.SeedSequence([seed, len(position), *position]).generate_state(2, np.uint32)
    return int(entropy[0]) << 31 | int(entropy[1]) >> 1


def full_compute(
    reference: Planner,
    context: Context,
    noise: Noise,
    visit: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Trajectories of full compute, the noise cast to the reference's precision.

    Raises:
        DenoiserError: a trajectory is not finite; no cache is calibrated against NaN.
    """
    trajectories = reference.sample(context, noise=noise.to(reference.dtype), visit=visit)
    require_finite(trajectories)
    return trajectories


def require_finite(trajectories: Tensor) -> None:
    """Raise DenoiserError if a trajectory of full compute is not finite."""
    if not torch.isfinite(trajectories).all():
        raise DenoiserError(
            "full compute gives a trajectory that is not finite; check the network before "
            "calibrating a cache for it"
        )


def median_seconds(
    runs: Sequence[Callable[..., object]], context: Context, noise: Noise
) -> list[float]:
    """Median seconds of a call of one row by each of some runs, in turns; the first row warms up.

    Every round begins with the other end of the runs.
    """
    device = noise.initial.device
    turns: list[tuple[Callable[..., object], list[float]]] = [(run, []) for run in runs]
    for row in range(len(noise.initial)):
        place = torch.tensor([row], device="cpu")  # rows of their own: a network may write there
        one, drawn = select(context, place), noise.select(place)
        for run, spent in turns if row % 2 else turns[::-1]:
            began = time.perf_counter()
            run(one, noise=drawn)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            spent.append(time.perf_counter() - began)
    return [statistics.median(spent[1:] or spent) for _, spent in turns]


class Runtimes(dict[AnyProgram, Runtime]):
    """The runtime of each program on one planner, made once: a captured one is worth keeping."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def __missing__(self, program: AnyProgram) -> Runtime:
        self[program] = runtime_for(self._planner, program, strict=True)
        return self[program]

    def __reduce__(self) -> tuple[type[Runtimes], tuple[Planner]]:
        return Runtimes, (self._planner,)  # another process makes its own


class Drawn(dict[tuple[int, ...], Noise]):
    """The noise of some batches; another process draws its own."""

    def __reduce__(self) -> tuple[type[Drawn], tuple[()]]:
        return Drawn, ()


class Measured(NamedTuple):
    """Deviation, accumulated error estimate and evaluations of some calls, one entry each."""

    deviation: FloatArray
    estimate: FloatArray
    evaluations: npt.NDArray[np.int64]

    @classmethod
    def join(cls, parts: list[Measured]) -> Measured:
        """One after the other."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


@dataclass(eq=False)
class PairedCalls:
    """A set of calls whose full trajectories are computed once and compared with many programs."""

    planner: Planner  # its programs are measured
    context: Context  # batched, of all calls, or None
    count: int  # of calls; the rows of the context
    metric: Metric
    seed: int  # noise of call i is a function of (seed, i) alone
    reference: Planner | None = None  # its full trajectory is the truth; the planner's own if None
    batch: int = 32  # calls that are run together
    known: dict[int, Tensor] = field(default_factory=dict)  # full trajectories computed so far

    def __post_init__(self) -> None:
        rows = batch_size(self.context)
        if rows is not None and rows != self.count:
            raise InputError(f"the context has {rows} calls but {self.count} were announced")
        self._runtimes = Runtimes(self.planner)
        self._noises = Drawn()

    @classmethod
    def for_tuning(
        cls, planner: Planner, calls: object, metric: str | Metric, seed: int
    ) -> PairedCalls:
        """The calls that a user gives for tuning: batched contexts, or how many; at least one."""
        count = calls if isinstance(calls, int) else batch_size(calls)
        if not count:
            raise InputError("tuning needs at least one call")
        context = None if isinstance(calls, int) else calls
        return cls(planner, context, count, resolve(metric)[1], seed)

    def noise(self, calls: list[int]) -> Noise:
        """The noise of some calls; what was drawn last is kept, for the next program."""
        key = tuple(calls)
        if key not in self._noises:
            seeds = [call_seed(self.seed, call) for call in calls]
            self._noises[key] = self.planner.draw_noise(seeds=seeds)
            if len(self._noises) > DRAWN:
                del self._noises[next(iter(self._noises))]
        return self._noises[key]

    def contexts(self, calls: list[int]) -> Context:
        """The contexts of some calls."""
        return select(self.context, torch.tensor(calls, device="cpu"))

    def tolerance(self, tolerance: Tolerance, calls: list[int]) -> FloatArray:
        """The tolerance of some calls, (len(calls),)."""
        return tolerances(tolerance, self.contexts(calls), len(calls))

    def full(self, calls: list[int]) -> Tensor:
        """Full trajectories of some calls, computed at most once each."""
        missing = [call for call in calls if call not in self.known]
        if missing:
            truth, noise = self.reference or self.planner, self.noise(missing)
            self.remember(missing, full_compute(truth, self.contexts(missing), noise))
        return torch.stack([self.known[call] for call in calls])

    def remember(self, calls: list[int], full: Tensor) -> None:
        """Keep full trajectories, (len(calls), ...), in rows of their own: a view would be pickled
        with all that it is a view of, the states of all steps or the whole batch."""
        self.known.update(zip(calls, (row.clone() for row in full), strict=True))

    def forget(self, program: AnyProgram) -> None:
        """Drop what was set up for a program that will not run again."""
        self._runtimes.pop(program, None)

    def run(self, program: AnyProgram, calls: list[int]) -> tuple[Tensor, Record]:
        """Run a program on some calls."""
        return self._runtimes[program](self.contexts(calls), noise=self.noise(calls))

    def measure(self, program: AnyProgram, calls: list[int]) -> Measured:
        """Run a program on some calls, paired with Full."""
        full = self.full(calls)
        cached, record = self.run(program, calls)
        # Afresh: a network may write into its own.
        context = self.contexts(calls) if takes_context(self.metric) else None
        deviation = measure(self.metric, full, cached.to(full.dtype), context)
        return Measured(deviation, record.estimate, record.evaluations)

    def measured(self, item: tuple[AnyProgram, list[int]]) -> Measured:
        """:meth:`measure`, for a map over programs and calls."""
        return self.measure(*item)

    def measure_in_batches(self, program: AnyProgram, calls: list[int]) -> Measured:
        """Run a program on some calls, as many together as ``batch`` says."""
        return Measured.join([self.measure(program, part) for part in self.parts(calls)])

    def charged_in_batches(self, program: AnyProgram) -> FloatArray:
        """The error estimate of a program by step, (calls, steps), on all calls."""
        parts = self.parts(list(range(self.count)))
        return np.concatenate([self.run(program, part)[1].charged for part in parts])

    def parts(self, calls: list[int]) -> list[list[int]]:
        """Calls that are run together: as few parts as can be, of equal size for equal workers."""
        count = -(-len(calls) // self.batch)
        ends = [len(calls) * part // max(1, count) for part in range(count + 1)]
        return [calls[first:last] for first, last in pairwise(ends)]
