"""What a motion prior learns: the noise in recorded motions between two poses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn_bench.networks.agent import Agent, save_agent
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.runs import Runs, split_runs
from muninn_bench.planners.agent_lesson import CHECKED, HELD_OUT, Hidden, weighted_error
from muninn_bench.planners.motion_prior import MotionPrior


class MotionLesson:
    """See :class:`muninn_bench.networks.trainer.Lesson`.

    Args:
        recipe: of the prior.
        task: its name, which the file records.
        runs: each of as many frames as a plan, joints in radians, free of collisions.
        coordinates: of the joints; their limits are those of the arm.
        seed: of the weights.

    Raises:
        InputError: fewer than two runs, frames or joints that the prior does not have, or a joint
            beyond the limits.
    """

    def __init__(
        self,
        recipe: MotionPrior,
        task: str,
        runs: Runs,
        coordinates: Coordinates,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.kind = f"{recipe.planner} on {task}: {recipe}"
        self.network: nn.Module = recipe.networks().to(device)
        self._recipe, self._task, self._coordinates = recipe, task, coordinates
        self._hidden = Hidden(recipe.schedule, device)
        training, rest = split_runs(runs, HELD_OUT)
        self._plans, self._held_out = (self._read(part).to(device) for part in (training, rest))
        self._weight = torch.ones(recipe.horizon, recipe.joints, device=device)
        self._weight[:: recipe.horizon - 1] = 0.0

    def _read(self, runs: Runs) -> Tensor:
        """Normalised plans (runs, frames, joints)."""
        recipe = self._recipe
        lengths = set((runs.offsets[1:] - runs.offsets[:-1]).tolist())
        if lengths != {recipe.horizon} or runs.frames.shape[1] != recipe.joints:
            raise InputError(
                f"a motion is {recipe.horizon} frames of {recipe.joints} joints, the data has "
                f"{sorted(lengths)[:3]} frames of {runs.frames.shape[1]}; record it again, or set "
                "the horizon and the joints of the prior"
            )
        plans = self._coordinates.normalise(torch.from_numpy(runs.frames))
        if not bool((plans.abs() <= 1.0 + 1e-3).all()):
            far = plans.abs().amax(dim=0).nan_to_num(nan=torch.inf)
            raise InputError(
                f"joint {int(far.argmax())} of the data leaves its limits, or is not finite; "
                "record it within the limits of the arm"
            )
        return plans.view(-1, recipe.horizon, recipe.joints)

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Motions, noise and timesteps; half of the motions backwards, which are as free."""
        device = self._plans.device
        place = torch.randint(len(self._plans), (count,), generator=generator, device=device)
        back = torch.rand(count, generator=generator, device=device) < 0.5
        plans = self._plans[place]
        plans = torch.where(back[:, None, None], plans.flip(1), plans)
        return plans, *self._hidden.draw(plans, generator)

    def validation(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Motions that are kept out of training."""
        times = -(-CHECKED // len(self._held_out))
        plans = self._held_out.repeat(times, 1, 1)[:CHECKED]
        return plans, *self._hidden.draw(plans, generator)

    def loss(self, network: Any, *batch: Tensor) -> Tensor:
        """Error of the noise between the ends, which are inpainted and told."""
        clean, noise, t = batch
        last = clean.shape[1] - 1
        noisy = self._hidden.noisy(clean, noise, t)
        noisy[:, ::last] = clean[:, ::last]
        predicted = network["plan"](noisy, t, clean[:, ::last].flatten(1))
        return weighted_error(predicted, noise, self._weight)

    def save(self, network: nn.Module, out: Path) -> Path:
        """``agent.safetensors``."""
        assert isinstance(network, nn.ModuleDict)
        path = out / "agent.safetensors"
        made = (self._task, self._recipe.planner, network, self._coordinates, self._recipe.steps)
        save_agent(path, Agent(*made))
        return path
