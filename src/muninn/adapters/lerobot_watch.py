"""What may change in a LeRobot policy after its cache was switched on; read at every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def policy_state(policy: Any, model: nn.Module) -> dict[str, Any]:
    """Mode, precision and weights of a policy, with all parts of its model: encoders too.

    Weights are followed by identity, by torch's count of in-place writes, and by the first and
    last number of each: averaged weights are often copied in through ``.data``, which is not
    counted. A write through ``.data`` that leaves all of these numbers alone is not seen.
    """
    parts, weights = list(model.modules()), list(model.parameters())
    device = weights[0].device
    available = torch.amp.is_autocast_available(device.type)
    autocast = available and torch.is_autocast_enabled(device.type)
    versions = [(id(each), 0 if each.is_inference() else each._version) for each in weights]
    ends = [_ends(each).to(device) for each in weights if each.numel() and not each.is_meta]
    numbers = torch.cat(ends).double().tolist() if ends else []
    return {
        "train mode": policy.training or any(part.training for part in parts),
        "device": device,
        "dtype": sorted({str(each.dtype) for each in weights}),
        "autocast": torch.get_autocast_dtype(device.type) if autocast else None,
        "compiled parts": sum(map(_is_compiled, parts)),
        "weights": f"version {hash((*versions, *numbers)) & 0xFFFFFFFF:08x}",
    }


def _ends(weight: Tensor) -> Tensor:
    """First and last number, (2,), as one view: no kernel runs per weight."""
    sizes = zip(weight.shape, weight.stride(), strict=True)
    span = sum((size - 1) * stride for size, stride in sizes)
    return weight.as_strided((2,), (span,))


def _is_compiled(part: nn.Module) -> bool:
    """By ``torch.compile(part)``, or by ``part.compile()``."""
    return "_orig_mod" in part._modules or part._compiled_call_impl is not None
