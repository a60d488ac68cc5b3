"""Torch's switches of precision as they are by default, and set by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from muninn.identity.arithmetic import arithmetic

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MATMUL: Any = torch.backends.cuda.matmul
NEW = hasattr(MATMUL, "fp32_precision")
HALVES = ("fp16", "bf16")


@contextmanager
def default_precisions() -> Iterator[None]:
    """As torch has them by default, whatever was set before, and afterwards too."""
    set_defaults()
    yield
    set_defaults()


def set_defaults() -> None:
    if NEW:
        torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
        for kind in ("matmul", "conv"):
            getattr(torch.backends.mkldnn, kind).fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for half in HALVES:
        set_switch(f"cuda.matmul.allow_{half}_reduced_precision_reduction", True)
    if hasattr(MATMUL, "allow_fp16_accumulation"):
        MATMUL.allow_fp16_accumulation = False
    assert not torch.backends.cuda.matmul.allow_tf32
    assert arithmetic(CUDA) is None and arithmetic(CPU) is None


def set_switch(name: str, value: Any) -> None:
    *holders, last = name.split(".")
    holder = torch.backends
    for each in holders:
        if not hasattr(holder, each):
            pytest.skip(f"torch has no {name}")
        holder = getattr(holder, each)
    if not hasattr(holder, last):
        pytest.skip(f"torch has no {name}")
    setattr(holder, last, value)
