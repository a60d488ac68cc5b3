"""What the Meta-World policies learn: LeRobot's own class and loss, or a flow on the same network.

Neither Meta-World nor mujoco is needed. The policy that is written holds averaged weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn_bench.networks.runs import Runs, load_runs, split_runs
from muninn_bench.tasks.metaworld import policy as policies

HELD_OUT = 0.03
"""Share of episodes, the last ones, for the validation loss."""


class Windows:
    """All steps of all episodes, normalised, on the device: no loader, no workers.

    A window belongs to a step: observations and actions at the policy's delta indices around it
    (here one step back; actions then 14 ahead). Beyond the ends of the episode the first or last
    step is repeated, and ``action_is_pad`` says so. The last ``drop_n_last_frames`` steps of an
    episode have no window: too much of it would be padding.

    The policy's preprocessor normalises everything once.

    Raises:
        InputError: no episode is long enough.
    """

    def __init__(
        self, demonstrations: Runs, config: Any, preprocessor: Any, device: torch.device
    ) -> None:
        steps = policies.channels(demonstrations)
        normalised = preprocessor(dict(steps))
        self._steps = {name: normalised[name].to(device) for name in steps}
        first, last = demonstrations.offsets[:-1], demonstrations.offsets[1:] - 1
        usable = np.maximum(last + 1 - first - config.drop_n_last_frames, 0)
        centres = [np.arange(a, a + count) for a, count in zip(first, usable, strict=True)]
        if not usable.any():
            raise InputError(
                f"the longest of {len(first)} episodes has {(last + 1 - first).max()} "
                f"steps; a window needs more than {config.drop_n_last_frames}"
            )
        # (windows, 3): the step, and the first and last of its episode.
        bounds = np.stack([np.repeat(first, usable), np.repeat(last, usable)], axis=1)
        table = np.column_stack([np.concatenate(centres), bounds])
        self._windows = torch.from_numpy(table).to(device)
        self._seen = torch.tensor(config.observation_delta_indices, device=device)
        self._acted = torch.tensor(config.action_delta_indices, device=device)

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, windows: Tensor) -> dict[str, Tensor]:
        """The batch of some windows: observations (batch, 2, ...), actions (batch, 16, 4)."""
        centre, first, last = self._windows[windows].T[:, :, None]
        seen = (centre + self._seen).clamp(first, last)
        wanted = centre + self._acted
        acted = wanted.clamp(first, last)
        batch = {
            name: values[acted if name == "action" else seen]
            for name, values in self._steps.items()
        }
        return {**batch, "action_is_pad": acted != wanted}

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """A random batch, windows equally likely."""
        device = self._windows.device
        return self.take(torch.randint(len(self), (count,), generator=generator, device=device))


class PolicyLesson:
    """See :class:`muninn_bench.networks.trainer.Lesson`.

    ``data`` is a file of :mod:`muninn_bench.tasks.metaworld.data`; ``flow`` asks for flow matching
    instead of diffusion.

    Raises:
        InputError: the data holds fewer than two episodes.
    """

    network: nn.Module

    def __init__(self, data: Path, flow: bool, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        whole = load_runs(data)
        training, rest = split_runs(whole, HELD_OUT)
        policy = policies.make_policy().to(device).train()
        self.kind, self.network, self._flow = ("flow" if flow else "diffusion"), policy, flow
        self._processors = policies.make_processors(policy, whole)
        config, normalise = policy.config, self._processors[0]
        self._windows = Windows(training, config, normalise, device)
        check = Windows(rest, config, normalise, device)
        self._held_out = check.take(torch.arange(min(len(check), 2048), device=device))

    def batch(self, count: int, generator: torch.Generator) -> tuple[dict[str, Tensor]]:
        """Windows as LeRobot's dataset would give them."""
        return (self._windows.draw(count, generator),)

    def validation(self, generator: torch.Generator) -> tuple[dict[str, Tensor]]:
        """Windows of the last episodes."""
        return (self._held_out,)

    def loss(self, network: Any, *batch: Any) -> Tensor:
        """LeRobot's, or the flow's; both draw from torch's global generator."""
        loss: Tensor = (
            policies.flow_loss(network, batch[0]) if self._flow else network.forward(batch[0])[0]
        )
        return loss

    def save(self, network: nn.Module, out: Path) -> Path:
        """A LeRobot checkpoint."""
        device = next(network.parameters()).device
        policies.save_policy(out, network.to("cpu"), *self._processors)
        network.to(device)
        return out
