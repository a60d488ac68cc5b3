"""Gates over probe scores: the paper's budget, and the two thresholds people use instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.paper.envelope import Envelope

Units = Literal["algorithm", "appendix", "mended"]


class Gate(Protocol):
    """Decides, per trajectory and step, whether the cached prediction is used once more."""

    def start(self, rows: int, device: torch.device) -> Tensor:
        """State at the beginning of a call, (rows,) float32."""

    def decide(
        self, step: int, score: Tensor, allowed: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which rows reuse at ``step``, what that costs them, and the next state; each (rows,).

        The score is that of this step's probe against the last one's, the state that of the last
        decision, both (rows,) float32; rows may reuse where ``allowed``, (rows,) bool. The cost is
        zero where nothing is reused.
        """


@dataclass(frozen=True)
class Budget:
    """Algorithm 1: reuse while the bounded cost of doing so fits into what is left of a budget."""

    envelope: Envelope
    tolerance: float  # the budget of each trajectory
    weights: tuple[float, ...]  # by step: what a unit of U_t, the bound on the reuse error, costs

    def start(self, rows: int, device: torch.device) -> Tensor:
        """The whole budget for every trajectory."""
        return torch.full((rows,), self.tolerance, dtype=torch.float32, device=device)

    def decide(
        self, step: int, score: Tensor, allowed: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Spend where the cost fits; in float32 ``a - b >= 0`` holds exactly where ``b <= a``."""
        if step not in self.envelope.eligible:
            return torch.zeros_like(allowed), torch.zeros_like(state), state
        cost = self.weights[step] * self.envelope(step, score)
        reuse = allowed & (cost <= state)
        cost = torch.where(reuse, cost, 0.0)
        return reuse, cost, state - cost


def paper_budget(
    planner: Planner,
    envelope: Envelope,
    tolerance: float,
    *,
    units: Units = "algorithm",
    sensitivity: bool = True,
) -> Budget:
    """The budget of the paper for a planner.

    The label of Algorithm 2 is an error per entry, ``||e|| / sqrt(H d)``; the metric is one per
    time step, ``||.|| / sqrt(H)``. A bound U_t on the label therefore moves the metric by
    ``sqrt(d) L_t U_t`` (``mended``). Algorithm 1 writes ``L_t U_t / sqrt(H)``, the appendix
    ``L_t U_t``.

    Args:
        planner: its sampler gives the path coefficients L_t, in epsilon form.
        tolerance: on the deviation, in the metric ``rms_step``.
        units: which of the three.
        sensitivity: False sets L_t = 1, the paper's ablation (iii).
    """
    if units not in get_args(Units):
        raise InputError(f"units must be one of {get_args(Units)}, got {units!r}")
    if not tolerance > 0.0:
        raise InputError(f"tolerance must be positive, got {tolerance}")
    horizon, width = planner.shape[0], planner.shape[-1]
    factor = {"algorithm": horizon**-0.5, "appendix": 1.0, "mended": width**0.5}[units]
    path = planner.sampler.sensitivity("epsilon") if sensitivity else [1.0] * len(planner.sampler)
    return Budget(envelope, tolerance, tuple(float(factor * weight) for weight in path))


@dataclass(frozen=True)
class Threshold:
    """ProbeThresh: reuse where the probe changed by less than a threshold since the last step."""

    threshold: float

    def start(self, rows: int, device: torch.device) -> Tensor:
        """Nothing accumulated."""
        return torch.zeros(rows, device=device)

    def decide(
        self, step: int, score: Tensor, allowed: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compare the score alone."""
        return allowed & (score < self.threshold), torch.zeros_like(state), state


class Accumulated(Threshold):
    """TeaCache-style: reuse until the probe's changes since the last evaluation add up.

    TeaCache also rescales the changes by a polynomial fitted to one image or video model; there
    is none for planners, so the sum is taken as it is.
    """

    def decide(
        self, step: int, score: Tensor, allowed: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the score, compare the sum, and start again where a step is evaluated."""
        total = state + score
        reuse = allowed & (total < self.threshold)
        return reuse, torch.zeros_like(state), torch.where(reuse, total, 0.0)
