"""A velocity policy of the same network and data: flow matching, ten Euler steps.

LeRobot's DiffusionPolicy serves as the container (U-Net, conditioning, files); its loss and its
sampling loop are replaced by those of a flow. Such a checkpoint is no diffusion policy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from muninn.adapters.lerobot.diffusion import ConditionalUNet
from muninn.model.planner import Planner
from muninn.model.solvers import euler

STEPS = 10

TIME_SCALE = 100.0
"""The network is told times from 0 to 100, the range its step embedding was made for."""


def flow_loss(policy: Any, batch: dict[str, Tensor]) -> Tensor:
    """Flow matching along straight lines, ``x = (1 - time) action + time noise``.

    The target is the velocity ``dx/dtime = noise - action`` (Lipman et al. 2023).
    """
    condition = policy.diffusion._prepare_global_conditioning(batch)
    clean = batch["action"]
    noise = torch.randn_like(clean)
    time = torch.rand(len(clean), device=clean.device)
    mixed = torch.lerp(clean, noise, time[:, None, None])
    velocity = policy.diffusion.unet(mixed, TIME_SCALE * time, global_cond=condition)
    return mse_loss(velocity, noise - clean)


def flow_planner(policy: Any, steps: int = STEPS) -> Planner:
    """The policy's sampling loop: Euler from noise at time 1 to actions at time 0."""
    config = policy.config
    return Planner(
        ConditionalUNet(policy.diffusion),
        euler(steps, time_scale=TIME_SCALE),
        (config.horizon, config.action_feature.shape[0]),
    )
