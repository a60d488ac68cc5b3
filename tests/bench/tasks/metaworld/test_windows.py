from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn_bench.networks.runs import Runs
from muninn_bench.tasks.metaworld.policy import TIME_SCALE, Windows, flow_loss, flow_planner

CONFIG = SimpleNamespace(
    observation_delta_indices=[-1, 0],
    action_delta_indices=list(range(-1, 15)),
    drop_n_last_frames=7,
    horizon=16,
    action_feature=SimpleNamespace(shape=(4,)),
)


def numbered(lengths: list[int]) -> Runs:
    """Every channel of a step holds the number of the step."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    step = np.arange(offsets[-1], dtype=np.float32)[:, None]
    return Runs(step.repeat(43, 1), offsets, 1.0 / 80.0, 3, 39)


def windows(lengths: list[int]) -> Windows:
    return Windows(numbered(lengths), CONFIG, lambda batch: batch, torch.device("cpu"))


def test_windows_are_lerobots_and_never_leave_their_episode() -> None:
    cut = windows([20, 30, 7])
    assert len(cut) == 13 + 23  # the last seven steps of an episode have none
    batch = cut.take(torch.arange(len(cut)))
    for row, centre in enumerate([*range(13), *range(20, 43)]):
        first, last = (0, 19) if centre < 20 else (20, 49)
        wanted = range(centre - 1, centre + 15)
        expected = [min(max(step, first), last) for step in wanted]
        assert batch["action"][row, :, 0].tolist() == expected
        assert batch["action_is_pad"][row].tolist() == [not first <= s <= last for s in wanted]
        assert batch["observation.state"][row, :, 0].tolist() == expected[:2]
        assert batch["observation.environment_state"].shape == (36, 2, 6)


def test_draws_cover_all_windows_and_repeat_from_a_seed() -> None:
    cut = windows([20, 30])
    first, second = (cut.draw(2000, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first["action"], second["action"])
    assert set(first["action"][:, 1, 0].tolist()) == {
        *map(float, range(13)),
        *map(float, range(20, 43)),
    }


def test_episodes_that_are_too_short_are_refused() -> None:
    with pytest.raises(InputError, match="has 7 steps; a window needs more than 7"):
        windows([7, 5])


class PointMass:
    """A policy whose network knows that every plan is ``target``: its velocity is exact."""

    config = CONFIG

    def __init__(self, target: Tensor) -> None:
        self.diffusion = self
        self._target = target

    def _prepare_global_conditioning(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.zeros(len(batch["action"]), 1)

    def unet(self, x: Tensor, timestep: Tensor, global_cond: Tensor) -> Tensor:
        return (x - self._target) / (timestep[:, None, None] / TIME_SCALE)


def test_the_exact_velocity_has_no_loss_and_reaches_the_plan() -> None:
    target = torch.linspace(-1.0, 1.0, 64).reshape(16, 4)
    policy = PointMass(target)
    batch = {"action": target.expand(256, -1, -1)}
    assert flow_loss(policy, batch) < 1e-6
    assert flow_loss(PointMass(target + 0.1), batch) > 1e-3
    context = torch.zeros(3, 1)
    plans = flow_planner(policy).sample(context, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(plans, target.expand(3, -1, -1), atol=1e-5)
