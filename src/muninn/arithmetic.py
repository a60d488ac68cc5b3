"""How the context around a call makes torch round: autocast, and TF32 on a GPU.

Neither is a property of a planner: a ``with`` block or a global switch changes what every network
computes. A certificate therefore says under which arithmetic it was made, and a deployed planner
looks at every call.
"""

from __future__ import annotations

from typing import Any

import torch

Arithmetic = dict[str, Any] | None
"""What differs from torch's defaults, JSON-ready; None if nothing does."""


def arithmetic(device: torch.device) -> Arithmetic:
    """The arithmetic in force on a device, in this thread. Takes a few microseconds.

    ``autocast`` names its dtype; ``matmul_tf32`` and ``cudnn_tf32`` are there on CUDA devices
    where they are not torch's defaults, off for matrix products and on for convolutions.

    >>> arithmetic(torch.device("cpu"))
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     arithmetic(torch.device("cpu"))
    {'autocast': 'bfloat16'}
    """
    kind = device.type
    found: dict[str, Any] = {}
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        found["autocast"] = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
    if kind == "cuda":
        found |= _tf32()
    return found or None


def _tf32() -> dict[str, bool]:
    """TF32 switches that are not torch's defaults.

    In newer torch ``allow_tf32`` raises where ``fp32_precision`` was set; that one is read where
    it exists, and follows ``allow_tf32`` and ``set_float32_matmul_precision`` too.
    """
    cudnn: Any = torch.backends.cudnn
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision is None:
        matmul, convolution = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32
    else:
        matmul, convolution = precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    found = {"matmul_tf32": True} if matmul else {}
    return found if convolution else {**found, "cudnn_tf32": False}
