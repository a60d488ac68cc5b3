"""What a cache cannot stand in for: compiled networks, and loops that somebody overrode."""

from __future__ import annotations

from typing import Any

import torch

from muninn.errors import InputError


def require_not_compiled(network: Any) -> None:
    """Refuse what ``torch.compile`` or ``torch.jit`` made: it runs the code it has traced.

    Raises:
        InputError: the network is compiled.
    """
    compiled = hasattr(network, "_orig_mod") or hasattr(network, "_torchdynamo_orig_callable")
    in_place = getattr(network, "_compiled_call_impl", None) is not None
    if compiled or in_place or isinstance(network, torch.jit.ScriptModule):
        raise InputError(
            f"{type(network).__name__} is compiled; give the network as it was before "
            "torch.compile or torch.jit, or compile a part inside it"
        )


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
