"""Which plan an arm gets, what two choices are apart, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import motion_cases as cases
from muninn.certify.metrics import measure, metric_name, takes_context
from muninn.errors import InputError
from muninn_bench.planners.motion_choice import (
    Chooser,
    choose,
    hand_metric,
    joints_metric,
    path_cost,
    switched,
)

BOX = torch.tensor([[0.0, 0.0, 0.0, 0.2, 0.2, 0.2]])
"""One box around the origin; the point has a radius of 0.1 m."""


def context(calls: int = 1) -> Tensor:
    start, goal = torch.zeros(1, 7), torch.zeros(1, 7)
    start[0, 0], goal[0, 0] = -0.5, 0.5
    return torch.cat([start, goal, BOX], dim=1).expand(calls, -1)


def detour(aside: float, frames: int = 9) -> Tensor:
    """From x = -1 m to 1 m, ``aside`` metres beside the box's centre but for both ends."""
    share = torch.linspace(0.0, 1.0, frames)
    bow = (6.0 * torch.minimum(share, 1.0 - share)).clamp_max(1.0)
    plan = torch.zeros(frames, 7)
    plan[:, 0] = 2.0 * share - 1.0
    plan[:, 1] = aside * bow
    return plan / cases.REACH


def chooser(**changes: float) -> Chooser:
    return Chooser(cases.Point(), cases.coordinates(), **changes)  # type: ignore[arg-type]


def test_the_cheapest_of_the_free_plans_is_taken() -> None:
    plans = torch.stack([detour(0.0), detour(0.9), detour(0.6), detour(0.25)])[None]
    found = choose(chooser(), plans, context())
    assert found.row.tolist() == [2] and found.free.tolist() == [True]
    torch.testing.assert_close(found.joints[0], cases.REACH * plans[0, 2])
    # 0.4 m beside a face, less the radius.
    assert found.clearance.item() == pytest.approx(0.3, abs=1e-6)
    step = found.joints[0].diff(dim=0)
    cost = step.norm(dim=1).sum() + step.diff(dim=0).norm(dim=1).sum()
    assert found.cost.item() == pytest.approx(cost.item())


def test_of_plans_that_all_collide_the_clearest_is_taken_and_said() -> None:
    plans = torch.stack([detour(0.0), detour(0.28), detour(0.1)])[None]
    found = choose(chooser(), plans, context())
    assert found.row.tolist() == [1] and found.free.tolist() == [False]
    assert found.clearance.item() == pytest.approx(-0.02, abs=1e-6)
    # A margin of 2 cm: a plan that is 1.2 cm clear is not free.
    near = torch.stack([detour(0.312), detour(0.0)])[None]
    assert choose(chooser(), near, context()).free.tolist() == [True]
    assert choose(chooser(margin=0.02), near, context()).free.tolist() == [False]


def test_poses_between_frames_are_looked_at() -> None:
    # Two frames on either side of the box: only what is between them collides.
    plan = torch.stack([detour(0.0, 2), detour(0.0, 2)])
    plan[1] = detour(0.0, 2)
    found = choose(chooser(), plan[None], context())
    assert found.free.tolist() == [False] and found.clearance.item() == pytest.approx(-0.3)


def test_a_plan_beyond_the_limits_is_clamped() -> None:
    plan = detour(0.6)
    plan[4, 6] = 1.5
    found = choose(chooser(), plan[None, None], context())
    assert found.joints[0, 4, 6].item() == cases.REACH


def test_calls_are_chosen_apart() -> None:
    plans = torch.stack([torch.stack([detour(0.9), detour(0.6)]),
                         torch.stack([detour(0.6), detour(0.9)])] * 9)  # fmt: skip
    found = choose(chooser(), plans, context(18))
    assert found.row.tolist() == [1, 0] * 9


def test_a_row_that_is_not_finite_is_never_taken() -> None:
    broken = detour(0.6)
    broken[3, 6] = math.nan
    plans = torch.stack([broken, detour(0.9), broken])[None]
    assert choose(chooser(), plans, context()).row.tolist() == [1]
    colliding = torch.stack([broken, detour(0.1), detour(0.0)])[None]
    found = choose(chooser(), colliding, context())
    assert found.row.tolist() == [1] and found.free.tolist() == [False]
    fine = torch.stack([detour(0.6), detour(0.9)])[None]
    with pytest.raises(InputError, match=r"none of the 2 plans of call 1 has a finite cost.*check"):
        choose(chooser(), torch.cat([fine, broken.expand(1, 2, -1, -1)]), context(2))
    with pytest.raises(InputError, match="call 0 has a finite cost"):
        choose(Chooser(cases.Point(math.nan), cases.coordinates()), fine, context())


def test_a_straight_path_costs_its_length_alone() -> None:
    straight = torch.linspace(0.0, 3.0, 7)[:, None]
    assert path_cost(straight).item() == pytest.approx(3.0)
    zigzag = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    assert path_cost(zigzag).item() == pytest.approx(3.0 + 4.0)


# -- metrics -----------------------------------------------------------------------------------


def test_metrics_compare_what_the_arm_gets_and_nothing_else() -> None:
    taker = chooser()
    full = torch.stack([detour(0.6), detour(0.9)])[None]
    joints, hand = joints_metric(taker), hand_metric(taker, cases.hand)
    assert measure(joints, full, full, context()).tolist() == [0.0]
    other = full.clone()
    other[:, 1, 2, 5] += 0.3  # of the plan that is not taken
    assert measure(joints, full, other, context()).tolist() == [0.0]
    other[:, 0, 2, 5] += 0.02  # the hand does not move with this joint
    assert measure(joints, full, other, context()).tolist() == pytest.approx([0.04])
    assert measure(hand, full, other, context()).tolist() == [0.0]
    other[:, 0, 6, :2] += torch.tensor([0.015, 0.02])
    assert measure(hand, full, other, context()).tolist() == pytest.approx([0.05], rel=1e-5)
    assert not switched(taker, full, other, context()).any()
    assert (metric_name(joints), metric_name(hand)) == ("joints_rad", "hand_m")
    assert takes_context(joints) and takes_context(hand)


def test_another_row_is_another_plan() -> None:
    taker = chooser()
    full = torch.stack([detour(0.6), detour(-0.602)])[None]
    fast = torch.stack([detour(0.604), detour(-0.602)])[None]
    assert switched(taker, full, fast, context()).tolist() == [True]
    apart = measure(hand_metric(taker, cases.hand), full, fast, context())
    assert apart.tolist() == pytest.approx([1.202])
