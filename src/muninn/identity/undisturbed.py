"""Run a network without a trace: random generators and its buffers are as they were before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from muninn.identity.arithmetic import Arithmetic
from muninn.identity.snapshot import Snapshot


@contextmanager
def undisturbed(denoiser: Any, device: torch.device) -> Iterator[None]:
    """Puts back the generators of Python, numpy and torch, and every buffer of the network."""
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in Snapshot(denoiser).modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = [device.index or 0] if device.type == "cuda" else []
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        with torch.no_grad():
            for module, name, buffer, content in buffers:
                module._buffers[name] = buffer
                if not torch.isclose(buffer, content, rtol=0, atol=0, equal_nan=True).all():
                    buffer.copy_(content)


def under_autocast(arithmetic: Arithmetic, kind: str) -> AbstractContextManager[object]:
    """The autocast of an arithmetic on a kind of device; off where it names none."""
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    name = (arithmetic or {}).get("autocast")
    # Nothing is cached: all threads share the cache, while this one may have its own stream.
    return torch.autocast(
        kind, getattr(torch, name) if name else None, enabled=name is not None, cache_enabled=False
    )
