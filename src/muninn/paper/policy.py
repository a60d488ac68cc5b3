"""Algorithm 1: reuse the last noise prediction wherever a gate over probe scores allows it.

As published, each trajectory has one cached prediction, that of its most recent evaluation, and
its own decisions and budget; the probe runs at every step. The budget does **not** bound the
deviation from full compute (docs/paper.md): use :func:`muninn.calibrate` for a promise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.errors import DenoiserError, InputError
from muninn.model.denoiser import check_prediction
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.paper.epsilon import eligible_steps, require_eligible, reused, used_epsilon
from muninn.paper.gates import Budget, Gate
from muninn.paper.score import SCORES
from muninn.paper.split import Probe
from muninn.record import Record


@dataclass(frozen=True)
class PaperRecord(Record):
    """What happened in one call of the published method.

    ``bound`` and ``estimate`` are the paper's runtime certificate ``Dhat``, the sum of what was
    ``charged`` to reused steps. It is reported as the paper defines it; it is not a bound. ``rho``
    is its share of the tolerance, (batch,), or NaN for gates without a budget.
    """

    rho: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(eq=False)
class ProbedPlanner:
    """A planner whose denoiser's core runs only where a gate over the probe asks for it."""

    planner: Planner
    probe: Probe
    gate: Gate  # muninn.paper.paper_budget for the published method
    _: KW_ONLY
    # Steps at which reuse is allowed; all but a tenth at either end by default.
    eligible: InitVar[Sequence[int] | None] = None
    longest_age: int | None = None  # most steps a prediction may be reused for; None as published

    def __post_init__(self, eligible: Sequence[int] | None) -> None:
        steps = len(self.planner.sampler)
        self._eligible = eligible_steps(steps) if eligible is None else tuple(eligible)
        if self._eligible:  # none is full compute
            require_eligible(self._eligible, steps)
        if self.longest_age is not None and self.longest_age < 1:
            raise InputError(f"longest_age must be at least 1 or None, got {self.longest_age}")

    @torch.no_grad()
    def __call__(
        self,
        context: Context = None,
        *,
        noise: Noise | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, PaperRecord]:
        """One planning call: trajectories (batch, horizon, dim) and what it took.

        Raises DenoiserError if a prediction does not fit, or a trajectory is not finite.
        """
        began = time.perf_counter()
        planner, sampler, split = self.planner, self.planner.sampler, self.probe.split
        noise = planner.prepare(context, noise, generator)
        x = planner.start(noise, context)
        rows, device = len(x), x.device
        autocast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocast else x.dtype
        cached = torch.empty_like(x, dtype=dtype)  # step 0 evaluates every row
        age = torch.zeros(rows, dtype=torch.long, device=device)
        state = self.gate.start(rows, device)
        before = torch.empty(0)
        spent, evaluated = list[Tensor](), list[Tensor]()
        for step in range(len(sampler)):
            told = planner.timestep(step, rows)
            hidden = split.stem(x, told, context)
            feature = split.feature(hidden, x)
            reuse = torch.zeros(rows, dtype=torch.bool, device=device)
            cost = torch.zeros_like(state)
            if step > 0:
                allowed = torch.full_like(reuse, step in self._eligible)
                if self.longest_age is not None:
                    allowed &= age < self.longest_age
                score = SCORES[self.probe.score](feature, before)
                reuse, cost, state = self.gate.decide(step, score, allowed, state)
            before = feature
            spent.append(cost)
            evaluated.append(~reuse)
            age = torch.where(reuse, age + 1, torch.zeros_like(age))
            fresh = (~reuse).nonzero().squeeze(1)
            everything, after = len(fresh) == rows, x
            if not everything:
                after = reused(planner, x, cached, step, noise, context)
            if len(fresh):
                own: Tensor | slice = slice(None) if everything else fresh
                at, told, known = x[own], told[own], select(context, own)
                prediction = split.core(select(hidden, own), at, told, known)
                prediction = check_prediction(prediction, at, None)
                cached[own] = used_epsilon(sampler, at, prediction, step).to(dtype)
                moved = planner.advance(at, prediction, step, noise.at(step, own), known)
                after = moved if everything else after.index_copy(0, fresh, moved)
            x = after
        if not torch.isfinite(x).all():
            raise DenoiserError(
                "the trajectory is not finite; check the network, its inputs and its precision"
            )
        where = torch.stack(evaluated, 1).cpu().numpy()
        charged = torch.stack(spent, 1).double().cpu().numpy()
        total = charged.sum(axis=1)
        limit = self.gate.tolerance if isinstance(self.gate, Budget) else None
        return x, PaperRecord(
            where.sum(axis=1),
            where,
            total,
            (None,) * rows,
            time.perf_counter() - began,
            bound=None if limit is None else total,
            charged=charged,
            rho=total / (float("nan") if limit is None else limit),
        )
