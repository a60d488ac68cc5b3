"""How the context around a call makes torch round: autocast, and switches of reduced precision.

None of them is a property of a planner: a ``with`` block or a global switch changes what every
network computes. A certificate therefore says under which arithmetic it was made, and a deployed
planner compares it at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Arithmetic = dict[str, Any] | None
"""What differs from torch's defaults, JSON-ready; None if nothing does."""

# Looked up once: going through torch.backends takes longer than reading a switch.
_cudnn: Any = torch.backends.cudnn
_cublas: Any = torch.backends.cuda.matmul
_Switch = tuple[str, Callable[[], Any], tuple[Any, ...]]  # name, how it is read, values by default
_CPU: list[_Switch]
_CUDA: list[_Switch]
if hasattr(_cublas, "fp32_precision"):
    # In torch 2.9 and later. It follows ``allow_tf32`` and ``set_float32_matmul_precision``, while
    # ``allow_tf32`` raises where it was set.
    _convolution: Any = _cudnn.conv
    _CUDA = [
        ("matmul_tf32", lambda: _cublas.fp32_precision == "tf32", (False,)),
        ("cudnn_tf32", lambda: _convolution.fp32_precision == "tf32", (True,)),
    ]
    _CPU = [
        (f"mkldnn_{kind}", partial(getattr, switch, "fp32_precision"), ("none", "ieee"))
        for kind in ("matmul", "conv")
        for switch in [getattr(torch.backends.mkldnn, kind)]
    ]
else:
    _CUDA = [
        ("matmul_tf32", lambda: _cublas.allow_tf32, (False,)),
        ("cudnn_tf32", lambda: _cudnn.allow_tf32, (True,)),
    ]
    _CPU = [("mkldnn_matmul", torch.get_float32_matmul_precision, ("highest",))]
_CUDA += [
    (name, partial(getattr, _cublas, name), (default,))
    for name, default in (
        ("allow_fp16_accumulation", False),
        ("allow_fp16_reduced_precision_reduction", True),
        ("allow_fp16_reduced_precision_reduction_split_k", True),
        ("allow_bf16_reduced_precision_reduction", True),
        ("allow_bf16_reduced_precision_reduction_split_k", True),
    )
    if hasattr(_cublas, name)
]
_SWITCHES = {"cpu": _CPU, "cuda": _CUDA}


def arithmetic(device: torch.device) -> Arithmetic:
    """The arithmetic in force on a device, in this thread. Takes a few microseconds.

    ``autocast`` names its dtype. The rest is there where it is not torch's default: on the CPU
    ``mkldnn_matmul`` and ``mkldnn_conv``, the precision of float32 in oneDNN; on CUDA
    ``matmul_tf32``, ``cudnn_tf32`` and the switches of ``torch.backends.cuda.matmul``.

    >>> arithmetic(torch.device("cpu"))
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     arithmetic(torch.device("cpu"))
    {'autocast': 'bfloat16'}
    """
    kind = device.type
    found: dict[str, Any] = {}
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        found["autocast"] = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
    for name, read, default in _SWITCHES.get(kind, ()):
        if (value := read()) not in default:
            found[name] = value
    return found or None


def switches(found: Arithmetic) -> dict[str, Any]:
    """What of an arithmetic is set for the whole process: all but autocast."""
    return {name: value for name, value in (found or {}).items() if name != "autocast"}
