"""The paper's probe in its fairest form: as a gate over our forecasts, look-back included.

The same probe only decides *when* to evaluate; forecast, look-back and certificate are ours, so a
comparison with the embedded error estimate is one of gates alone. The stem runs at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.engines.rounds import RoundRuntime, Rows
from muninn.model.planner import Planner
from muninn.paper.gates import Gate
from muninn.paper.score import SCORES
from muninn.paper.split import Probe
from muninn.programs.forecast import AnyForecast
from muninn.programs.plan import Everywhere, Program


class ProbeGatedRuntime(RoundRuntime):
    """Forecasts between the steps at which a gate over the probe asks for an evaluation.

    The gate is a :class:`muninn.paper.Threshold` or :class:`muninn.paper.Accumulated`. Not
    thread-safe.
    """

    def __init__(self, planner: Planner, forecast: AnyForecast, probe: Probe, gate: Gate) -> None:
        super().__init__(planner, Program(forecast, Everywhere()))
        self.probe = probe
        self.gate = gate
        self._hidden: Any = None  # what the stem gave at the current step, every row

    def __reduce__(self) -> tuple[Any, ...]:
        made_of = (self.planner, self.program.forecast, self.probe, self.gate)
        return ProbeGatedRuntime, made_of

    def _rounds(self, rows: Rows, draws: Tensor | None, context: Context) -> None:
        """Visit every step: probe all rows, evaluate those that the gate does not let reuse."""
        split, steps, count = self.probe.split, len(self.planner.sampler), len(rows.after)
        everyone = torch.arange(count, device=rows.after.device)
        state = self.gate.start(count, rows.after.device)
        before = torch.empty(0)
        for step in range(steps):
            at = torch.full_like(everyone, step)
            x = self._state(self._past(rows, everyone, at), at, draws, context)
            self._hidden = split.stem(x, self._timesteps[at], context)
            feature = split.feature(self._hidden, x)
            fresh = everyone
            if step > 0:
                # Until its order has the history it needs, and at the last step: evaluate.
                allowed = (rows.count == self._forecaster.memory) & (at < steps - 1)
                score = SCORES[self.probe.score](feature, before)
                reuse, _, state = self.gate.decide(step, score, allowed, state)
                fresh = (~reuse).nonzero().squeeze(1)
            before = feature
            if len(fresh):
                rows.due[fresh] = step
                self._round(rows, fresh, draws, context)

    def _evaluate_rows(
        self, rows: Rows, active: Tensor, state: Tensor, step: Tensor, context: Context
    ) -> Tensor:
        hidden = select(self._hidden, active)
        return self.probe.split.core(hidden, state, self._timesteps[step], context)
