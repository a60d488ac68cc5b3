"""The sampling loop of a LeRobot policy: when it can be replaced, and by whose answers.

Contexts that are made this way are what the policy's own code tells its loop: encoders,
history and action queue need no second version here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from muninn.adapters.registry import adapter_for, framework_loop
from muninn.context import Context
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


@contextmanager
def answered(policy: Any, answer: Callable[[Context], Tensor]) -> Iterator[None]:
    """Inside, the policy's loop returns ``answer(context)``: plans of the planner's shape.

    The policy is reset before and after. Torch's global random numbers are left as they were.

    Raises:
        InputError: the policy cannot be cached as it is (train mode, ...), or its loop was
            replaced, by its cache or by somebody else.
    """
    adapter = adapter_for(policy)
    planner = adapter.planner_of(policy)
    owner, name = framework_loop(policy)
    present = vars(owner).get(name)

    def loop(*args: Any, **kwargs: Any) -> Tensor:
        return answer(adapter.arguments(planner, *args, **kwargs)[0])

    devices = [planner.device] if planner.device.type == "cuda" else []
    policy.reset()
    setattr(owner, name, loop)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        if present is None:
            delattr(owner, name)
        else:
            setattr(owner, name, present)
        policy.reset()
