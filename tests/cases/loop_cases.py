"""Virtual clocks, scripted planners and small certified ones that the closed-loop tests share."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analytic import mixture_planner
from certify_cases import SHORT_FAMILY, adopted, table_family
from muninn.certify.cached import CachedPlanner
from muninn.certify.cached import cache as cache_planner
from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate
from muninn.certify.units import Episodes, PlanFunction
from muninn.loop.escalation import PlanSource
from muninn.loop.request import CertifiedPrograms, Reply, Request, accept_all
from muninn.loop.worker import InProcess
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.record import Record

STEPS = 6
SHAPE = (4, 2)
TOLERANCE = 0.5


def hidden(value: float) -> Any:
    """A number that is no setting of what holds it: certificates look at plain numbers only."""
    return (ctypes.c_double * 1)(value)


class VirtualClock:
    """Time that passes only when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = hidden(now)

    @property
    def now(self) -> float:
        return self._now[0]

    @now.setter
    def now(self, value: float) -> None:
        self._now[0] = value

    def __call__(self) -> float:
        return self.now


class VirtualRunner:
    """A worker process on a virtual clock: waits until the deadline and no longer."""

    def __init__(self, programs: object, seconds: Callable[[Request], float]) -> None:
        self.time = VirtualClock()
        self.seconds = seconds
        self._inner = InProcess(programs, self.time)  # type: ignore[arg-type]

    def clock(self) -> float:
        return self.time.now

    def ask(self, job: Request, until: float) -> Reply | str:
        done = self.time.now + self.seconds(job)
        if done > until:
            self.time.now = max(self.time.now, until)
            return "no plan by the deadline"
        self.time.now = done
        return self._inner.ask(job, until)


def record(
    estimate: list[float], rank: list[float] | None = None, fallback: str | None = None
) -> Record:
    rows = len(estimate)
    return Record(
        np.full(rows, 3),
        np.ones((rows, STEPS), dtype=bool),
        np.array(estimate),
        (fallback,) * rows,
        0.0,
        rank=None if rank is None else np.array(rank),
    )


@dataclass
class Scripted:
    """Programs that say what they are told to; every plan carries a number of its own.

    Attributes:
        rank: of the certified plan.
        estimates: of resampled plans.
        flaws: of plans by source; a missing source has none.
        fails: raised by a source.
        made: plans ever returned, by number, with their flaw.
        ran: jobs, in order.
    """

    rank: float = 0.5
    estimates: list[float] = field(default_factory=lambda: [0.4, 0.3, 0.2, 0.1])
    flaws: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    fails: dict[str, Exception] = field(default_factory=dict)
    fallback: str | None = None
    rows: int | None = None
    not_finite: bool = False
    made: dict[int, str | None] = field(default_factory=dict)
    ran: list[Request] = field(default_factory=list)

    def run(self, job: Request) -> Reply:
        self.ran.append(job)
        source = str(job.source)
        if source in self.fails:
            raise self.fails[source]
        rows = self.rows or len(job.seeds)
        flaws = (self.flaws.get(source, ()) + (None,) * rows)[:rows]
        first = len(self.made)
        self.made.update({first + row: flaw for row, flaw in enumerate(flaws)})
        plans = torch.arange(first, first + rows).double().view(-1, 1, 1).repeat(1, *SHAPE)
        if self.not_finite:
            plans[:, -1] = torch.nan
        estimates = (self.estimates * rows)[:rows] if source == "resampled" else [0.5] * rows
        return Reply(plans, record(estimates, [self.rank] * rows, self.fallback), flaws)

    def most_evaluations(self, source: PlanSource | int) -> int:
        return STEPS


# -- a real planner whose evaluations cost virtual time -----------------------------------------


@dataclass(eq=False)
class Ticking:
    """A denoiser that takes ``tick`` virtual seconds, and may fail at will."""

    inner: object
    time: VirtualClock
    tick: Any = field(default_factory=lambda: hidden(0.01))
    fault: list[str] = field(default_factory=list)

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor, /) -> Tensor:
        self.time.now += self.tick[0]
        if "raise" in self.fault:
            raise RuntimeError("the network is gone")
        out: Tensor = self.inner(x, timestep, context)  # type: ignore[operator]
        return out * torch.nan if "nan" in self.fault else out


def planner() -> Planner:
    return mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), SHAPE)


def starts(count: int, seed: int) -> Tensor:
    return 0.5 * torch.randn(count, SHAPE[1], generator=torch.Generator().manual_seed(seed))


def drive(plan: PlanFunction, seed: int) -> None:
    """Three calls; each context depends on the plan before it."""
    context = starts(1, seed)
    for _ in range(3):
        context = 0.6 * context + 0.4 * plan(context)[:, 1]


@cache
def certificate(loop: str = "open", programs: str = "loops") -> Certificate:
    """A certificate whose member is neither full compute nor the last of the family."""
    calls = starts(120, 1) if loop == "open" else Episodes(drive, 120)
    family, tolerance = SHORT_FAMILY, TOLERANCE
    if programs == "tables":  # they come closer
        family, tolerance = table_family(planner().sampler, (5, 4, 3, 2)), 0.2
    settings = {"risk": 0.1, "family": family, "progress": False}
    return calibrate(planner(), calls, tolerance=tolerance, **settings)  # type: ignore[arg-type]


def fast(loop: str = "open", programs: str = "loops") -> CachedPlanner:
    return cache_planner(planner(), certificate(loop, programs))


def programs(loop: str = "open") -> CertifiedPrograms:
    return CertifiedPrograms(fast(loop), accept_all)


def ticking(time: VirtualClock) -> tuple[CertifiedPrograms, Ticking]:
    """The certified programs with evaluations that take time; the promise is not checked again."""
    own = planner()
    denoiser = Ticking(own.denoiser, time)
    slow = Planner(denoiser, own.sampler, own.shape)
    fast = CachedPlanner(slow, adopted(certificate(), slow), "error")
    return CertifiedPrograms(fast, accept_all), denoiser


# -- programs for a real worker process ---------------------------------------------------------


class Obedient:
    """Does what the context says: plan, sleep, raise, die, or answer with its process number."""

    def run(self, job: Request) -> Reply:
        order = job.context
        if order == "sleep":
            time.sleep(1e6)
        if order == "raise":
            raise RuntimeError("no route")
        if order == "die":
            os._exit(3)
        plans = torch.full((len(job.seeds), *SHAPE), float(os.getpid()), dtype=torch.float64)
        ranks = [0.5] * len(plans)
        return Reply(plans, record([0.1] * len(plans), ranks), (None,) * len(plans))

    def most_evaluations(self, source: PlanSource | int) -> int:
        return STEPS


def obedient() -> Obedient:
    return Obedient()


def unbuildable() -> Obedient:
    return CertifiedPrograms(cache_planner(planner(), "missing.safetensors"), accept_all)  # type: ignore[return-value]
