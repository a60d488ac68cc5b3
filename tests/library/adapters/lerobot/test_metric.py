"""Executed actions within 2 mm and 1 degree: limits for groups of channels."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from lerobot_cases import make_policy
from muninn.adapters.lerobot import executed_actions
from muninn.errors import InputError

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")


def test_a_group_is_a_euclidean_distance() -> None:
    policy = make_policy()
    full = torch.zeros(4, 16, 2)
    cached = full.clone()
    cached[0, 3] = torch.tensor([0.3, 0.4])
    cached[1, 3], cached[1, 5] = torch.tensor([0.3, 0.0]), torch.tensor([0.0, 0.4])
    cached[2, 8, 1] = -0.4
    cached[3, 9] = 9.0  # not executed

    def physical(actions: torch.Tensor) -> torch.Tensor:
        return 10.0 * actions

    together = executed_actions(policy, physical, limits={(0, 1): 2.0})
    torch.testing.assert_close(together(full, cached), torch.tensor([2.5, 2.0, 2.0, 0.0]))
    apart = executed_actions(policy, physical, limits={(0,): 1.0, (1,): 8.0})
    torch.testing.assert_close(apart(full, cached), torch.tensor([3.0, 3.0, 0.5, 0.0]))
    same = executed_actions(policy, physical, limits=(1.0, 8.0))
    assert torch.equal(same(full, cached), apart(full, cached))
    without = executed_actions(policy, physical, limits={(0,): 1.0, (1,): math.inf})
    torch.testing.assert_close(without(full, cached), torch.tensor([3.0, 3.0, 0.0, 0.0]))
    assert apart.__qualname__ == "executed_actions:1-8:within:0=1,1=8"
    assert same.__qualname__ == "executed_actions:1-8:within:1,8"


def test_it_travels_to_worker_processes() -> None:
    metric = executed_actions(make_policy(), torch.negative, limits=(1.0, 8.0))
    there = pickle.loads(pickle.dumps(metric))
    full, cached = torch.rand(2, 3, 16, 2)
    assert torch.equal(there(full, cached), metric(full, cached))
    assert there.__qualname__ == metric.__qualname__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "limits",
    [
        {(0,): 1.0},
        {(0, 1): 1.0, (1,): 1.0},
        {(0, 1): 0.0},
        {(0, 2): 1.0},
        (1.0, math.nan),
        0.1,
        {0: 0.1, 1: 0.1},
        {(0, 1): None},
        ("0.1", "0.1"),
        {(0, "1"): 1.0},
    ],
    ids=str,
)
def test_every_channel_needs_one_positive_limit(limits: object) -> None:
    with pytest.raises(
        InputError, match=r"2 positive numbers.*channels 0 to 1 in one group.*\(0,\)"
    ):
        executed_actions(make_policy(), lambda actions: actions, limits=limits)  # type: ignore[arg-type]
