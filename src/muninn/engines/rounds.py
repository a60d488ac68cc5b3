"""The batched engine: each round evaluates every unfinished row, each at its own step.

Decisions, forecasts and look-back are tensors over rows, so nothing is grouped and nothing is
decided by the host; rows need different numbers of evaluations, and a round serves all that are
left. Equal to :class:`muninn.engines.runtime.Runtime` up to rounding, whatever the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.engines.gap import Past, StepTable, stacked_draws, vector_gap
from muninn.engines.kernels.optional import OptionalKernel
from muninn.engines.run_state import RunState
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.denoiser import at_timestep, check_prediction
from muninn.model.planner import Noise
from muninn.programs.forecast import Forecast, error_weights
from muninn.programs.kinds import Part
from muninn.programs.plan import Adaptive, Everywhere, Static

PLAN = OptionalKernel("plan", "plan_rows")


@dataclass
class Rows:
    """Device state of a call, one entry per row."""

    after: Tensor  # state right after the last evaluation, (rows, *shape)
    history: Tensor  # values at the nodes, newest last, (rows, memory, *shape) float32
    nodes: Tensor  # evaluated steps, newest last, (rows, memory)
    count: Tensor  # how many of the nodes are real, (rows,)
    due: Tensor  # next step to evaluate; ``steps`` once a row is finished, (rows,)
    used: Tensor  # evaluations so far, (rows,)
    evaluated: Tensor  # (rows, steps) bool
    charged: Tensor  # estimated error by step, (rows, steps) float64
    total: Tensor  # sum of all predictions: not finite if one was not, (rows,) float64


class RoundRuntime(Runtime):
    """Runs a program on many rows, each at its own pace.

    InputError for kinds of plans and forecasts without code here, and for subclasses of known ones:
    what they override would not be run.
    """

    def _set_up(self) -> None:
        super()._set_up()
        planner, plan, forecast = self.planner, self.program.plan, self.program.forecast
        if type(plan) not in (Everywhere, Static, Adaptive):
            raise _cannot_run("everywhere, static and adaptive plans", plan)
        if type(forecast) is not Forecast:
            raise _cannot_run("polynomial forecasts", forecast)
        sampler, device, quantity = planner.sampler, planner.device, forecast.quantity
        steps = range(len(sampler))
        exact = torch.float64 if planner.dtype == torch.float64 else torch.float32
        self._own = StepTable.of(sampler, sampler.kind, device, exact)
        self._table = StepTable.of(sampler, quantity, device, exact)
        conversions = [sampler.conversion(step, quantity) for step in steps]
        self._convert = torch.tensor(np.array(conversions), dtype=exact, device=device)
        self._timesteps = torch.cat([planner.timestep(step, 1) for step in steps])
        weights = error_weights(sampler, quantity, plan.emphasis)
        self._weights = torch.tensor(weights, dtype=torch.float64, device=device)
        self._places = self._table.variable
        self._order = forecast.order
        self._next: Tensor | None = None  # the step after each step, where the plan fixes it
        if plan.fixed:
            blank = np.zeros(len(sampler))
            named = [plan.within(step, len(sampler), 1, blank, np.nan) for step in steps]
            self._next = torch.tensor(named, device=device)
        self._true = torch.tensor(True, device=device)
        self._per_step = planner.shape[0] ** -0.5
        threshold = plan.threshold if isinstance(plan, Adaptive) else 0.0
        # As a tensor: a kernel takes plain numbers in single precision.
        self._limits = torch.tensor([self._per_step, threshold], dtype=torch.float64, device=device)

    def _attempt(self, run: RunState) -> None:
        rows = self._begin(run.noise, run.context)
        draws = stacked_draws(self.planner.sampler, run.noise)
        try:
            self._rounds(rows, draws, run.context)
        finally:  # what a call spent before it failed counts too
            self._outcome(run, rows)

    def _rounds(self, rows: Rows, draws: Tensor | None, context: Context) -> None:
        """Rounds until every row is at the end."""
        while len(active := (rows.due < len(self.planner.sampler)).nonzero().squeeze(1)):
            self._round(rows, active, draws, context)

    def _begin(self, noise: Noise, context: Context) -> Rows:
        planner, memory = self.planner, self._forecaster.memory
        x = planner.start(noise, context).clone()
        count, steps, device = len(x), len(planner.sampler), x.device

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros((count, *shape), dtype=dtype, device=device)

        return Rows(
            x,
            zeros(memory, *planner.shape, dtype=torch.float32),
            zeros(memory),
            zeros(),
            zeros(),
            zeros(),
            zeros(steps, dtype=torch.bool),
            zeros(steps, dtype=torch.float64),
            zeros(dtype=torch.float64),
        )

    def _round(self, rows: Rows, active: Tensor, draws: Tensor | None, context: Context) -> None:
        """Evaluate the active rows, each at its own due step, and name their next steps."""
        planner = self.planner
        noise = None if draws is None else draws[:, active]
        own = select(context, active)
        step = rows.due[active].clamp_max(len(planner.sampler) - 1)
        past = self._past(rows, active, step)
        state = self._state(past, step, noise, own)
        prediction = self._evaluate_rows(rows, active, state, step, own)
        prediction = check_prediction(prediction, state, None)
        rows.total[active] += prediction.flatten(1).sum(1, dtype=torch.float64)
        shape = [1] * (state.ndim - 1)
        from_state, from_prediction = self._convert[step].view(-1, 2, *shape).unbind(dim=1)
        value = (from_state * state + from_prediction * prediction).float()
        after = self._own.step(state, prediction, step, noise)
        if self.program.forecast.look_back:
            replayed = self._state(past.closed(step, value), step, noise, own)
            repaired = self._table.step(replayed, value, step, noise)
            after = torch.where((past.first < step).view(-1, *shape), repaired, after)
        if planner.condition is not None:
            after = planner.condition(after, own)
        rows.after[active] = after
        rows.history[active] = torch.cat([past.values[:, 1:], value[:, None]], dim=1)
        rows.nodes[active] = torch.cat([past.nodes[:, 1:], step[:, None]], dim=1)
        rows.count[active] = (rows.count[active] + 1).clamp_max(past.nodes.shape[1])
        rows.used[active] += 1
        rows.evaluated.index_put_((active, step), self._true)
        self._plan(rows, active, step)

    def _evaluate_rows(
        self, rows: Rows, active: Tensor, state: Tensor, step: Tensor, context: Context
    ) -> Tensor:
        """The denoiser at the states of the active rows, each at its own step."""
        with at_timestep(None):  # rows are at steps of their own
            return self._denoiser(state, self._timesteps[step], context)

    def _past(self, rows: Rows, active: Tensor, step: Tensor) -> Past:
        nodes, count = rows.nodes[active], rows.count[active]
        back = torch.arange(nodes.shape[1] - 1, -1, -1, device=nodes.device)
        known = (back < count[:, None]) & (back <= self._order)
        first = torch.where(count > 0, nodes[:, -1] + 1, step)
        return Past(rows.after[active], rows.history[active], nodes, known, first)

    def _state(self, past: Past, step: Tensor, noise: Tensor | None, context: Context) -> Tensor:
        """States at ``step``, after a gap of forecasts if any; then known entries are written."""
        state = vector_gap(self._table, past, step, noise)
        if self.planner.condition is None:
            return state
        conditioned = self.planner.condition(state.clone(), context)
        gapped = (past.first < step).view(-1, *[1] * (state.ndim - 1))
        return torch.where(gapped, conditioned, state)

    def _plan(self, rows: Rows, active: Tensor, step: Tensor) -> None:
        """The next step of each active row, and what its gap is charged."""
        if active.is_cuda and PLAN.run(self, rows, active, step):
            return
        steps, last = len(self.planner.sampler), len(self.planner.sampler) - 1
        nodes, count = rows.nodes[active], rows.count[active]
        scale, growth = self._estimate(rows.history[active], nodes, count)
        if self._next is not None:
            named = self._next[step]
        else:
            named = self._gate(rows.used[active], step, scale, growth, count)
        named = torch.minimum(torch.maximum(named, step + 1), torch.full_like(step, last))
        cost = scale * growth.gather(1, (named - 1).clamp_min(0)[:, None]).squeeze(1)
        cost = torch.where((named > step + 1) & (count > 1), cost, torch.zeros_like(cost))
        rows.charged[active, step] = cost
        rows.due[active] = torch.where(step == last, torch.full_like(step, steps), named)

    def _estimate(self, history: Tensor, nodes: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Size of the highest divided difference (rows,), and its growth by step (rows, steps)."""
        width = nodes.shape[1]
        back = torch.arange(width - 1, -1, -1, device=nodes.device)
        taking = back < count[:, None]
        places = self._places[nodes]
        other = ~torch.eye(width, dtype=torch.bool, device=nodes.device)
        pairs = taking[:, :, None] & taking[:, None, :] & other
        apart = torch.where(pairs, places[:, :, None] - places[:, None, :], 1.0)
        weights = torch.where(taking, 1.0 / apart.prod(dim=2), 0.0).to(history.dtype)
        shape = [1] * (history.ndim - 2)
        difference = (weights.view(*weights.shape, *shape) * history).sum(dim=1)
        size = torch.linalg.vector_norm(difference.flatten(1), dim=1).double() * self._per_step
        factors = (self._places[None, None, :] - places[:, :, None]).abs()
        factors = torch.where((back < count[:, None] - 1)[:, :, None], factors, 1.0).prod(dim=1)
        later = torch.arange(len(self._places), device=nodes.device) > nodes[:, -1:]
        growth = torch.where(later, factors * self._weights, 0.0).cumsum(dim=1)
        return size, growth

    def _gate(
        self, used: Tensor, step: Tensor, scale: Tensor, growth: Tensor, count: Tensor
    ) -> Tensor:
        """:meth:`muninn.programs.plan.Adaptive.next`, every row at once."""
        plan: Any = self.program.plan
        last = len(self.planner.sampler) - 1
        allowed = torch.where(scale > 0.0, plan.threshold / scale, torch.full_like(scale, np.inf))
        passing = torch.searchsorted(growth, allowed[:, None], right=True).squeeze(1)
        named = torch.minimum(torch.maximum(passing, step + 1), step + plan.longest)
        waiting = (step + 1 < plan.dense) | (count < self._forecaster.memory) | ~scale.isfinite()
        named = torch.where(waiting, step + 1, named)
        return torch.where(used >= plan.cap - 1, torch.full_like(step, last), named)

    def _outcome(self, run: RunState, rows: Rows) -> None:
        """Bring to the host what the call did."""
        run.after = rows.after
        run.evaluations[:] = rows.used.cpu().numpy()
        run.evaluated[:] = rows.evaluated.cpu().numpy()
        run.charged[:] = rows.charged.cpu().numpy()
        finite = (rows.total + rows.after.flatten(1).sum(1, dtype=torch.float64)).isfinite()
        for row, good in enumerate(finite.tolist()):
            if not good:
                run.failed[row] = "the denoiser returned NaN or Inf"


def _cannot_run(known: str, part: Part) -> InputError:
    seen = f"{type(part).__name__} (kind {part.kind!r})"
    return InputError(f"the batched engine runs {known}, not {seen}; use engine='eager'")
