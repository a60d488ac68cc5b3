"""The paper's probe in its fairest form: as a gate over our forecasts, look-back included.

The published method holds the last prediction and trusts a budget. Here the same probe only
decides *when* to evaluate; the forecast, the look-back and the certificate are ours, so a
comparison with the embedded error estimate is one of gates alone. The price stays: the stem runs
at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.forecast import Forecast
from muninn.paper.gates import Gate
from muninn.paper.score import SCORES
from muninn.paper.split import Probe
from muninn.plan import Everywhere, Program
from muninn.planner import Noise, Planner
from muninn.runtime import RunState, Runtime, group_rows


@dataclass
class _ProbedState(RunState):
    hidden: Any = None  # what the stem gave at the current step, every row


class ProbeGatedRuntime(Runtime):
    """Forecasts between the steps at which a gate over the probe asks for an evaluation.

    Args:
        planner: what is cached.
        forecast: what stands in for an evaluation.
        probe: stem and score.
        gate: :class:`muninn.paper.Threshold` or :class:`muninn.paper.Accumulated`.
    """

    def __init__(self, planner: Planner, forecast: Forecast, probe: Probe, gate: Gate) -> None:
        super().__init__(planner, Program(forecast, Everywhere()))
        self.probe = probe
        self.gate = gate

    def _blank(self, noise: Noise) -> RunState:
        return _ProbedState(**vars(super()._blank(noise)))

    def _advance_rows(self, run: RunState, noise: Noise, context: Context) -> None:
        """Visit every step: probe all rows, evaluate those that the gate does not let reuse."""
        assert isinstance(run, _ProbedState)
        planner, split = self.planner, self.probe.split
        steps, rows = len(planner.sampler), len(run.after)
        state = self.gate.start(rows, run.after.device)
        before = torch.empty(0)
        for step in range(steps):
            x = self._states(run, step, noise, context)
            run.hidden = split.stem(x, planner.timestep(step, rows), context)
            feature = split.feature(run.hidden, x)
            fresh = list(range(rows))
            if step > 0:
                # Until its order has the history it needs, and at the last step: evaluate.
                ready = [
                    len(nodes) == self._forecaster.memory and step < steps - 1
                    for nodes in run.nodes
                ]
                score = SCORES[self.probe.score](feature, before)
                allowed = torch.tensor(ready, device=x.device)
                reuse, _, state = self.gate.decide(step, score, allowed, state)
                fresh = (~reuse).nonzero().squeeze(1).tolist()
            before = feature
            if fresh:
                self._evaluate(run, step, fresh, noise, context)

    def _states(self, run: RunState, step: int, noise: Noise, context: Context) -> Tensor:
        """Every row's state at ``step``."""
        x = run.after.clone()
        for nodes, members in group_rows(list(range(len(x))), run):
            if nodes and step - nodes[-1] > 1:
                x[members] = self._arrive(run, step, nodes, members, noise, context)
        return x

    def _predict(
        self, run: RunState, state: Tensor, step: int, rows: list[int], context: Context
    ) -> Tensor:
        assert isinstance(run, _ProbedState)
        hidden = select(run.hidden, torch.tensor(rows, device=state.device))
        told = self.planner.timestep(step, len(rows))
        return self.probe.split.core(hidden, state, told, context)
