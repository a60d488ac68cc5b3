"""What a LeRobot policy must be before its sampling loop can be a planner."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from muninn.errors import InputError


def require_plain(policy: Any, model: nn.Module) -> torch.device:
    """The device of a policy in eval mode and outside of autocast.

    Raises:
        InputError: it is in train mode, or autocast is on.
    """
    device = next(model.parameters()).device
    if policy.training or any(part.training for part in model.modules()):
        raise InputError("the policy is in train mode; call policy.eval() first")
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        raise InputError(
            f"autocast to {torch.get_autocast_dtype(device.type)} is on; the policy's loop would "
            "draw other noise than without. Leave the autocast context (LeRobot: use_amp=false)"
        )
    return device


def require_lerobot_loop(owner: Any, name: str) -> None:
    """Refuse a sampling loop that is not LeRobot's own: a cache in its place would drop it.

    Raises:
        InputError: it is defined elsewhere.
    """
    home = getattr(type(owner), name).__module__
    if not home.startswith("lerobot."):
        raise InputError(
            f"{type(owner).__name__}.{name} is defined in {home}, not by LeRobot; this adapter "
            "replaces LeRobot's own loop. Write one for yours: docs/guides/adapter.md"
        )
