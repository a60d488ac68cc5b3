"""What may change in a LeRobot policy after its cache was switched on; read at every call."""

from __future__ import annotations

from typing import Any

from torch import nn

from muninn.adapters.watch import watched


def policy_state(policy: Any, model: nn.Module) -> dict[str, Any]:
    """Mode, precision and weights of a policy, with all parts of its model: encoders too."""
    state = watched(model)
    return {
        **state,
        "train mode": policy.training or state["train mode"],
        "dtype": sorted({str(each.dtype) for each in model.parameters()}),
        "compiled parts": sum(map(_is_compiled, model.modules())),
    }


def _is_compiled(part: nn.Module) -> bool:
    """By ``torch.compile(part)``, or by ``part.compile()``."""
    return "_orig_mod" in part._modules or part._compiled_call_impl is not None
