"""Where the tensors are that a captured call reads: a graph keeps addresses, not tensors."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from muninn.denoiser import parts_of

Place = tuple[dict[str, Any], str]
"""A module's dictionary of parameters, buffers or submodules, and a name in it."""


class Addresses:
    """The addresses of all weights that some callables reach, and a hold on their memory.

    Moving a network, changing its dtype, or assigning to its weights gives them other addresses;
    changing their values in place does not. Weights and submodules are looked up by name each
    time, so that one that was replaced is seen. What was found at first is kept alive: an address
    that is still in use here cannot have been given to another tensor.

    Args:
        holders: callables, searched for modules and tensors like a certificate's fingerprint.
    """

    def __init__(self, *holders: Any) -> None:
        self._weights: list[tuple[dict[str, Any], str, int, torch.dtype]] = []
        self._objects: list[tuple[dict[str, Any], str, Any]] = []
        self._held: list[Tensor] = []
        for found in _reached(holders, set()):
            if isinstance(found, Tensor):
                self._held.append(found.detach())
                continue
            places, name = found
            part = places[name]
            if address := _address(part):
                self._weights.append((places, name, address, part.dtype))
                self._held.append(part.detach())  # keeps the memory, whatever is assigned to it
            else:
                self._objects.append((places, name, part))

    def unchanged(self) -> bool:
        """Whether every weight is where it was; a fraction of a microsecond for each."""
        try:
            for places, name, address, dtype in self._weights:
                weight = places.get(name)
                if weight is None or weight.data_ptr() != address or weight.dtype != dtype:
                    return False
        except RuntimeError:  # replaced by one that has no address
            return False
        return all(places.get(name) is part for places, name, part in self._objects)


def _reached(holder: Any, seen: set[int], depth: int = 0) -> Iterator[Place | Tensor]:
    """Places of all that modules which can be reached are made of, and all other tensors."""
    if depth > 5 or id(holder) in seen or isinstance(holder, ModuleType | type | bytes):
        return
    seen.add(id(holder))
    if isinstance(holder, nn.Module):
        for module in holder.modules():
            for places in (module._parameters, module._buffers, module._modules):
                for name, part in places.items():
                    lazy = isinstance(part, Tensor) and is_lazy(part)
                    if part is not None and not lazy:
                        yield places, name
    elif isinstance(holder, Tensor):
        yield holder
    else:
        for part in parts_of(holder):
            yield from _reached(part, seen, depth + 1)


def _address(part: Tensor | nn.Module) -> int:
    """Of a tensor's first element; 0 for a module, and for a tensor made of others (quantised)."""
    try:
        return part.data_ptr() if isinstance(part, Tensor) else 0
    except RuntimeError:
        return 0
