"""The eager runtime: runs a program on a planner, any device, per-trajectory decisions.

The loop visits only steps at which some trajectory is evaluated. Between its evaluations a
trajectory rests; when its next evaluation is due, its gap is run with forecasts in one go. Each
row's history is its own, so a batch equals the loop over its elements.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.engines.compiled import CompiledDenoiser
from muninn.engines.gap import Gaps, difference_size
from muninn.engines.run_state import Group, RunState
from muninn.errors import DenoiserError, InputError
from muninn.model.denoiser import at_timestep, check_prediction, own_loop
from muninn.model.planner import Noise, Planner
from muninn.programs.forecast import GapWeights
from muninn.programs.plan import Static
from muninn.record import Record

OnFailure = Literal["full", "error"]

_log = logging.getLogger("muninn")


class Runtime:
    """Runs one program on one planner. Holds weights of the forecast, no state of any call."""

    def __init__(
        self,
        planner: Planner,
        program: Any,
        *,
        on_failure: OnFailure = "full",
        strict: bool = False,
    ) -> None:
        if on_failure not in ("full", "error"):
            raise InputError(f"on_failure is 'full' or 'error', got {on_failure!r}")
        self.planner = planner
        self.program = program
        self.on_failure = on_failure
        self._strict = strict  # calibration: only NaN and Inf may fall back, the rest is a bug
        self._denoiser = planner.denoiser
        if planner.engine == "compile":
            self._denoiser = CompiledDenoiser(planner.denoiser)
        self._set_up()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process makes its own: what is captured or computed once stays here."""
        remade = functools.partial(type(self), on_failure=self.on_failure, strict=self._strict)
        return remade, (self.planner, self.program)

    def _set_up(self) -> None:
        """What an engine needs besides; planner and program are known."""
        plan, last = self.program.plan, len(self.planner.sampler) - 1
        if isinstance(plan, Static) and plan.anchors[-1] > last:
            raise InputError(
                f"the plan has anchor {plan.anchors[-1]} but the sampler's last step is {last}; "
                "use a plan made for this sampler"
            )
        self._forecaster = self.program.forecast.bind(self.planner.sampler, plan.emphasis)
        self._gaps = Gaps(self.planner.sampler, self.program.forecast.quantity)

    def forget(self) -> None:
        """Drop what was captured: the network was another one meanwhile."""

    @torch.no_grad()
    def __call__(
        self,
        context: Context = None,
        *,
        noise: Noise | None = None,
        generator: torch.Generator | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[Tensor, Record]:
        """One planning call: trajectories (batch, horizon, dim) and what it took.

        ``meanwhile`` is run once, before the host waits for the device for the first time.

        Raises:
            InputError: context, noise and planner do not fit together.
            DenoiserError: the denoiser failed, and so did full compute, or it was not wanted.
        """
        noise = self.planner.prepare(context, noise, generator)
        return self.run(context, noise, meanwhile)

    @torch.no_grad()
    def run(
        self, context: Context, noise: Noise, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Tensor, Record]:
        """A call whose noise :meth:`Planner.prepare` has drawn or checked."""
        began = time.perf_counter()
        run = RunState(noise, context, len(self.planner.sampler))
        run.meanwhile = meanwhile
        try:
            with own_loop():
                self._attempt(run)
        except DenoiserError as error:
            if self.on_failure == "error" or self._strict:
                raise
            run.failed = dict.fromkeys(range(len(run.after)), str(error))
        run.use_waiting_time()
        if run.failed:
            self._recover(run)
        record = Record(
            run.evaluations,
            run.evaluated,
            run.charged.sum(axis=1),
            tuple(run.failed.get(row) for row in range(len(run.after))),
            time.perf_counter() - began,
            charged=run.charged,
        )
        return run.after, record

    def _attempt(self, run: RunState) -> None:
        """Carry every row to the end; each engine does it in its own way."""
        self._run(run)
        run.read()

    def _run(self, run: RunState) -> None:
        """Carry every row to the last step; with a fixed plan nothing is read by the host."""
        planner = self.planner
        run.after = planner.start(run.noise, run.context).clone()
        shape = (len(run.after), self._forecaster.memory, *planner.shape)
        run.history = torch.zeros(shape, dtype=torch.float32, device=run.after.device)
        while (step := min(run.due)) < len(planner.sampler):
            rows = [row for row, due in enumerate(run.due) if due == step]
            self._evaluate(run, step, rows)
        run.check_later(len(planner.sampler), range(len(run.after)), run.after)
        if self.program.plan.fixed:
            run.pack()

    def _evaluate(self, run: RunState, step: int, rows: list[int]) -> None:
        """Bring ``rows`` to ``step``, evaluate them there, take the step, and plan ahead."""
        groups = run.groups(rows)
        states = [self._arrive(run, step, group) for group in groups]
        if len(groups) == 1:
            state, own = states[0], select(run.context, groups[0][1])
        else:  # group by group, so that parts can be split off again
            rows = [row for _, members in groups for row in run.numbers(members)]
            state = torch.cat(states)
            own = select(run.context, torch.tensor(rows, device=state.device))
        with at_timestep(self.planner.sampler.steps[step].timestep):
            prediction = self._denoiser(state, self.planner.timestep(step, len(rows)), own)
        run.evaluations[rows] += 1
        run.evaluated[rows, step] = True
        prediction = check_prediction(prediction, state, run.dtype)
        run.dtype = prediction.dtype
        run.check_later(step, rows, prediction)
        if not self.program.plan.fixed:
            run.read()
        at = 0
        for group, part in zip(groups, states, strict=True):
            piece = slice(at, at := at + len(part))
            self._commit(run, step, group, state[piece], prediction[piece])

    def _arrive(self, run: RunState, step: int, group: Group) -> Tensor:
        """State at ``step`` of rows with equal history, after a gap of forecasts if any."""
        nodes, members = group
        if not nodes or step - nodes[-1] == 1:
            return run.after[members]
        weights = self._forecaster.extrapolate(nodes, step)
        values = _values(run.history[members], nodes)
        return self._replay(run, group, weights, values)

    def _commit(
        self, run: RunState, step: int, group: Group, state: Tensor, prediction: Tensor
    ) -> None:
        """Store an evaluation of rows with equal history, correct the state, step, plan ahead.

        ``state`` is the tensor the denoiser was given: one that clamps or conditions its input
        in place is followed, as in the plain sampler.
        """
        planner, sampler, forecast = self.planner, self.planner.sampler, self.program.forecast
        nodes, members = group
        value = sampler.convert(state, prediction, step, forecast.quantity)
        history = run.history[members]
        newest = value.detach().to(torch.float32)
        xi = run.noise.at(step, members)
        own = select(run.context, members)
        if forecast.look_back and nodes and step - nodes[-1] > 1:
            weights = self._forecaster.interpolate(nodes, step)
            values = [*_values(history, nodes), newest]
            state = self._replay(run, group, weights, values)
            after = sampler.step(state, value, step, xi, forecast.quantity)
            if planner.condition is not None:
                after = planner.condition(after, own)
        else:
            after = planner.advance(state, prediction, step, xi, own)
        if step == len(sampler) - 1:
            run.after[members] = after
            for row in run.numbers(members):
                run.due[row] = len(sampler)
            return
        history = torch.cat([history[:, 1:], newest[:, None]], dim=1)
        if isinstance(members, slice):
            run.history = history
        else:
            run.history[members] = history
        run.after[members] = after  # last: the prediction may be a view of it
        nodes = (*nodes, step)[-self._forecaster.memory :]
        self._plan_ahead(run, step, (nodes, members), history)

    def _plan_ahead(self, run: RunState, step: int, group: Group, history: Tensor) -> None:
        """Set each row's next evaluation and charge it the estimated error of its gap."""
        nodes, members = group
        plan, steps, rows = self.program.plan, len(self.planner.sampler), run.numbers(members)
        growth, values = self._forecaster.growth(nodes), _values(history, nodes)
        sizes = difference_size(self._forecaster, nodes, values, self.planner.shape[0])
        for row in rows:
            run.nodes[row] = nodes
        if plan.fixed:
            due = plan.within(step, steps, int(run.evaluations[rows[0]]), growth, math.nan)
            for row in rows:
                run.due[row] = due
            if sizes is not None and due > step + 1:
                run.unread.append((step, rows, sizes, float(growth[due - 1])))
            return
        # A gate waits for the history that its order needs.
        ready = len(nodes) == self._forecaster.memory
        known = [math.nan] * len(rows) if sizes is None else sizes.tolist()
        for row, scale in zip(rows, known, strict=True):
            if row in run.failed:
                run.due[row] = steps
                continue
            used, shown = int(run.evaluations[row]), scale if ready else math.nan
            run.due[row] = due = plan.within(step, steps, used, growth, shown)
            if due > step + 1 and sizes is not None:
                run.charged[row, step] = scale * float(growth[due - 1])

    def _replay(
        self, run: RunState, group: Group, weights: GapWeights, values: list[Tensor]
    ) -> Tensor:
        """Conditioned state after a gap, from the one after its last evaluation."""
        nodes, members = group
        after, first = run.after[members], nodes[-1] + 1
        x = self._gaps.run(after, weights, values, first, run.noise, members)
        if self.planner.condition is None:
            return x
        return self.planner.condition(x, select(run.context, members))

    def _recover(self, run: RunState) -> None:
        """Full compute for failed rows, or the error the user asked for."""
        reason = next(iter(run.failed.values()))
        if self.on_failure == "error":
            raise DenoiserError(
                f"{reason} (rows {sorted(run.failed)[:8]}); pass on_failure='full' to plan such "
                "calls with full compute"
            )
        log_once(f"falling back to full compute: {reason}")
        noise = run.noise.select(rows := torch.tensor(sorted(run.failed), device=run.after.device))
        full = self.planner.sample(select(run.context, rows), noise=noise)
        if full.shape != noise.initial.shape or not torch.isfinite(full).all():
            raise DenoiserError(
                f"{reason}, and full compute does not give a finite trajectory either; "
                "check the network, its inputs and its precision"
            )
        run.after = run.after.clone()
        run.after[rows] = full
        for row in sorted(run.failed):
            run.evaluations[row] += len(self.planner.sampler)
            run.charged[row] = np.nan  # full compute makes no forecast whose error could be judged


@functools.cache
def log_once(message: str) -> None:
    """Warn through the ``muninn`` logger, the first time only."""
    _log.warning(message)


def _values(history: Tensor, nodes: tuple[int, ...]) -> list[Tensor]:
    """The stored value of each node, oldest first; each (rows, *shape)."""
    return list(history[:, history.shape[1] - len(nodes) :].unbind(dim=1))
