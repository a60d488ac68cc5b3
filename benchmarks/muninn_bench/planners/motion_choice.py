"""Which of a call's plans an arm gets, and how far apart two programs' choices are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from muninn.certify.metrics import Metric
from muninn.errors import InputError
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.planners.motion_cost import between
from muninn_bench.planners.motion_prior import boxes_of
from muninn_bench.planners.policy import beside

TOGETHER = 8
"""Calls whose plans are checked at once: every pose is compared with every box."""


class Choice(NamedTuple):
    """What the arm gets of each call."""

    joints: Tensor  # radians, (batch, frames, joints)
    row: Tensor  # of the call, (batch,)
    free: Tensor  # whether the model of the arm keeps its margin, (batch,) bool
    clearance: Tensor  # least signed distance of a sphere, metres, (batch,)
    cost: Tensor  # length and bend of the path, radians, (batch,)


class Chooser(nn.Module):
    """Takes the free plan with the lowest cost; of plans that all collide, the clearest one.

    A plan is free if every sphere keeps ``margin`` metres from every box, at every frame and at
    poses between frames. Its cost is the length of the path plus the length of its second
    differences, both in radians of joint space. A plan is clamped to the limits of the coordinates
    before: what an arm is sent never leaves them. A row with a value that is not finite is never
    taken.

    Args:
        clearance: of the arm, see :mod:`muninn_bench.planners.motion_cost`.
        coordinates: of the joints.
        margin: metres.
        fineness: poses that are checked for every frame.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        clearance: nn.Module,
        coordinates: Coordinates,
        margin: float = 0.01,
        fineness: int = 4,
    ) -> None:
        super().__init__()
        self.clearance, self.margin, self.fineness = clearance, margin, fineness
        self.register_buffer("low", coordinates.low.clone())
        self.register_buffer("high", coordinates.high.clone())

    @torch.no_grad()
    def forward(self, plans: Tensor, contexts: Tensor) -> Choice:
        """Choose among plans (batch, rows, frames, joints); contexts are (batch, ...).

        Raises:
            InputError: no row of a call is finite.
        """
        joints = Coordinates(self.low, self.high).unnormalise(plans.clamp(-1.0, 1.0))
        boxes = boxes_of(contexts, plans.shape[-1])
        parts = zip(torch.split(joints, TOGETHER), torch.split(boxes, TOGETHER), strict=True)
        clearance = torch.cat([self.least_clearance(*part) for part in parts])
        cost = path_cost(joints)
        known = cost.isfinite() & ~clearance.isnan() & plans.isfinite().all(dim=(2, 3))
        if not bool(known.any(dim=1).all()):
            call = int((~known.any(dim=1)).nonzero()[0])
            raise InputError(
                f"none of the {plans.shape[1]} plans of call {call} has a finite cost, so that "
                "none can be chosen; check the boxes of its context, the model of the arm, and the "
                "weights of the planner"
            )
        free = known & (clearance >= self.margin)
        cheapest = torch.where(free, cost, torch.inf).argmin(dim=1)
        clearest = torch.where(known, clearance, -torch.inf).argmax(dim=1)
        row = torch.where(free.any(dim=1), cheapest, clearest)
        calls = torch.arange(len(plans), device=plans.device)
        picked = (each[calls, row] for each in (free, clearance, cost))
        return Choice(joints[calls, row], row, *picked)

    def least_clearance(self, joints: Tensor, boxes: Tensor) -> Tensor:
        """Least distance of a sphere, (batch, rows), of paths (batch, rows, frames, joints)."""
        poses = between(joints, self.fineness)
        found: Tensor = self.clearance(poses, boxes[:, None, None])
        return found.amin(dim=(2, 3))


def path_cost(joints: Tensor) -> Tensor:
    """Length of paths (..., frames, joints) plus the length of their second differences, radians.

    >>> path_cost(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor(4.)
    """
    step = joints.diff(dim=-2)
    length: Tensor = torch.linalg.vector_norm(step, dim=-1).sum(dim=-1)
    bend: Tensor = torch.linalg.vector_norm(step.diff(dim=-2), dim=-1).sum(dim=-1)
    return length + bend


def choose(chooser: Chooser, plans: Tensor, contexts: Tensor) -> Choice:
    """The choice, made where the plans are."""
    chosen: Choice = beside(chooser, plans)(plans, contexts.to(plans.device))
    return chosen


def joints_metric(chooser: Chooser) -> Metric:
    """Largest difference of a joint at a frame between the two plans that the arm gets, radians."""

    return _named(partial(_joints_rad, chooser), "joints_rad", "radians")


def hand_metric(chooser: Chooser, hand: Callable[[Tensor], Tensor]) -> Metric:
    """Largest distance of the hand at a frame between the two plans that the arm gets, metres.

    ``hand(joints)`` gives places (..., 3) in metres of poses (..., joints) in radians, on the
    device of the poses.
    """
    return _named(partial(_hand_m, chooser, hand), "hand_m", "metres")


def _joints_rad(chooser: Chooser, full: Tensor, fast: Tensor, context: Tensor) -> Tensor:
    one, other = (choose(chooser, plans, context).joints for plans in (full, fast))
    return (one - other).abs().amax(dim=(1, 2))


def _hand_m(
    chooser: Chooser,
    hand: Callable[[Tensor], Tensor],
    full: Tensor,
    fast: Tensor,
    context: Tensor,
) -> Tensor:
    one, other = (hand(choose(chooser, plans, context).joints) for plans in (full, fast))
    apart: Tensor = torch.linalg.vector_norm(one - other, dim=-1).amax(dim=1)
    return apart


def _named(metric: Metric, name: str, unit: str) -> Metric:
    metric.__qualname__ = name  # what a promise calls it
    metric.unit = unit  # type: ignore[attr-defined]
    return metric


def switched(chooser: Chooser, full: Tensor, fast: Tensor, context: Tensor) -> Tensor:
    """Whether the choice fell on another row, (batch,)."""
    return choose(chooser, full, context).row != choose(chooser, fast, context).row
