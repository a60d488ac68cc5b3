"""What a user may change in a network after its cache was switched on, cheap enough to look at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError


def module_behind(network: Any) -> nn.Module | None:
    """The module that a network is, or whose method it is; None for any other callable."""
    owner = network if isinstance(network, nn.Module) else getattr(network, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


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


@torch.no_grad()
def watched(module: nn.Module | None) -> dict[str, Any]:
    """Mode, precision and weights of a module.

    Weights are followed by identity, by torch's count of in-place writes, and by the first and
    last number of each: averaged weights are often copied in through ``.data``, which is not
    counted. A write through ``.data`` that leaves all of these numbers alone is not seen.
    """
    weights = [] if module is None else [each for each in module.parameters() if each.numel()]
    if module is None or not weights:
        return {}
    versions = [(id(each), 0 if each.is_inference() else each._version) for each in weights]
    device = weights[0].device
    ends = [_ends(each).to(device) for each in weights if not each.is_meta]
    numbers = torch.cat(ends).double().tolist() if ends else []
    available = torch.amp.is_autocast_available(device.type)
    autocast = available and torch.is_autocast_enabled(device.type)
    return {
        "train mode": any(part.training for part in module.modules()),
        "device": device,
        "autocast": torch.get_autocast_dtype(device.type) if autocast else None,
        "weights": f"version {hash((*versions, *numbers)) & 0xFFFFFFFF:08x}",
    }


def _ends(weight: Tensor) -> Tensor:
    """First and last number, (2,), as one view: no kernel runs per weight."""
    sizes = zip(weight.shape, weight.stride(), strict=True)
    span = sum((size - 1) * stride for size, stride in sizes)
    return weight.as_strided((2,), (span,))
