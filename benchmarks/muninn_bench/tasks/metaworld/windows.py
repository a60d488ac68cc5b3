"""LeRobot's training batches, cut on the device from whole tensors: no loader, no workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn_bench.tasks.metaworld.data import Demonstrations
from muninn_bench.tasks.metaworld.policy import channels


class Windows:
    """All steps of all episodes, normalised; draws batches as LeRobot's dataset would.

    A window belongs to a step: observations and actions at the policy's delta indices around it
    (here one step back; actions then 14 ahead). Beyond the ends of the episode the first or last
    step is repeated, and ``action_is_pad`` says so. The last ``drop_n_last_frames`` steps of an
    episode have no window: too much of it would be padding.

    The policy's preprocessor normalises everything once.

    Raises:
        InputError: no episode is long enough.
    """

    def __init__(
        self, demonstrations: Demonstrations, config: Any, preprocessor: Any, device: torch.device
    ) -> None:
        steps = channels(demonstrations)
        normalised = preprocessor(dict(steps))
        self._steps = {name: normalised[name].to(device) for name in steps}
        first, last = demonstrations.offsets[:-1], demonstrations.offsets[1:] - 1
        usable = np.maximum(last + 1 - first - config.drop_n_last_frames, 0)
        centres = [np.arange(a, a + count) for a, count in zip(first, usable, strict=True)]
        if not usable.any():
            raise InputError(
                f"the longest of {demonstrations.episodes} episodes has {(last + 1 - first).max()} "
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
