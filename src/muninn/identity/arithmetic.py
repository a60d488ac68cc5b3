"""How the context around a call makes torch round: autocast, and switches of reduced precision.

None of them is a property of a planner: a ``with`` block or a global switch changes what every
network computes. A certificate therefore says under which arithmetic it was made, and a deployed
planner looks at every call.
"""

from __future__ import annotations

from typing import Any

import torch

Arithmetic = dict[str, Any] | None
"""What differs from torch's defaults, JSON-ready; None if nothing does."""

# Looked up once: going through torch.backends takes longer than reading a switch.
_cudnn: Any = torch.backends.cudnn
_cublas: Any = torch.backends.cuda.matmul
_PRECISIONS = hasattr(_cublas, "fp32_precision")  # torch 2.9 and later
_convolution: Any = _cudnn.conv if _PRECISIONS else None
_MKLDNN = [
    (f"mkldnn_{kind}", getattr(torch.backends.mkldnn, kind))
    for kind in ("matmul", "conv")
    if _PRECISIONS
]
_CUBLAS = [
    (name, default)
    for name, default in (
        ("allow_fp16_accumulation", False),
        ("allow_fp16_reduced_precision_reduction", True),
        ("allow_fp16_reduced_precision_reduction_split_k", True),
        ("allow_bf16_reduced_precision_reduction", True),
        ("allow_bf16_reduced_precision_reduction_split_k", True),
    )
    if hasattr(_cublas, name)
]


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
    if kind == "cuda":
        _add_cuda(found)
    elif kind == "cpu":
        _add_onednn(found)
    return found or None


def switches(found: Arithmetic) -> dict[str, Any]:
    """What of an arithmetic is set for the whole process: all but autocast."""
    return {name: value for name, value in (found or {}).items() if name != "autocast"}


def _add_cuda(found: dict[str, Any]) -> None:
    """TF32 is off for matrix products and on for convolutions by default.

    In newer torch ``allow_tf32`` raises where ``fp32_precision`` was set; that one is read where
    it exists, and follows ``allow_tf32`` and ``set_float32_matmul_precision`` too.
    """
    if _PRECISIONS:
        matmul = _cublas.fp32_precision == "tf32"
        convolution = _convolution.fp32_precision == "tf32"
    else:
        matmul = _cublas.allow_tf32
        convolution = _cudnn.allow_tf32
    if matmul:
        found["matmul_tf32"] = True
    if not convolution:
        found["cudnn_tf32"] = False
    for name, default in _CUBLAS:
        if (value := getattr(_cublas, name)) != default:
            found[name] = value


def _add_onednn(found: dict[str, Any]) -> None:
    """Factors of float32 are not rounded on the CPU by default."""
    for name, switch in _MKLDNN:
        if (precision := switch.fp32_precision) not in ("none", "ieee"):
            found[name] = precision
    if not _PRECISIONS and (precision := torch.get_float32_matmul_precision()) != "highest":
        found["mkldnn_matmul"] = precision
