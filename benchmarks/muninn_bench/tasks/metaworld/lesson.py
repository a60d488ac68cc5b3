"""What the Meta-World policies learn: LeRobot's own class and loss, or a flow on the same network.

Neither Meta-World nor mujoco is needed. The policy that is written holds averaged weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn_bench.tasks.metaworld.data import load_demonstrations
from muninn_bench.tasks.metaworld.flow import flow_loss
from muninn_bench.tasks.metaworld.policy import make_policy, make_processors, save_policy
from muninn_bench.tasks.metaworld.windows import Windows

HELD_OUT = 0.03
"""Share of episodes, the last ones, for the validation loss."""


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
        whole = load_demonstrations(data)
        kept = whole.episodes - max(1, round(HELD_OUT * whole.episodes))
        if kept < 1:
            raise InputError(f"{data} holds {whole.episodes} episodes; give at least 2")
        policy = make_policy().to(device).train()
        self.kind, self.network, self._flow = ("flow" if flow else "diffusion"), policy, flow
        self._processors = make_processors(policy, whole)
        config, normalise = policy.config, self._processors[0]
        self._windows = Windows(whole.part(0, kept), config, normalise, device)
        check = Windows(whole.part(kept, whole.episodes), config, normalise, device)
        self._held_out = check.take(torch.arange(min(len(check), 2048), device=device))

    def batch(self, count: int, generator: torch.Generator) -> tuple[dict[str, Tensor]]:
        """Windows as LeRobot's dataset would give them."""
        return (self._windows.draw(count, generator),)

    def validation(self, generator: torch.Generator) -> tuple[dict[str, Tensor]]:
        """Windows of the last episodes."""
        return (self._held_out,)

    def loss(self, network: Any, *batch: Any) -> Tensor:
        """LeRobot's, or the flow's; both draw from torch's global generator."""
        loss: Tensor = flow_loss(network, batch[0]) if self._flow else network.forward(batch[0])[0]
        return loss

    def save(self, network: nn.Module, out: Path) -> Path:
        """A LeRobot checkpoint."""
        device = next(network.parameters()).device
        save_policy(out, network.to("cpu"), *self._processors)
        network.to(device)
        return out
