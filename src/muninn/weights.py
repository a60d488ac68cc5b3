"""The weights of a deployed denoiser, watched: a certificate holds for those it was made for."""

from __future__ import annotations

import contextlib
import hashlib
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muninn.denoiser import tensor_bytes
from muninn.links import identified
from muninn.reach import Reach

NUMBERS = 8  # looked at in every weight, because writes through ``.data`` are not counted by torch
_dtype = operator.attrgetter("dtype")
_writes = operator.attrgetter("_version")  # in place


class Weights:
    """What the weights of a denoiser are now, to be compared with what they are later.

    Weights are parameters and persistent buffers of all modules that can be reached, and tensors
    outside of modules that certificates identify. They are followed by where they are held, by
    their memory, shape and strides, by torch's count of writes in place and by some of their
    numbers; modules by train mode too. Memory is held, as for graphs: until a call finds that a
    network has been moved, it takes up room where it was.

    Args:
        denoiser: the callable.
    """

    def __init__(self, denoiser: Any) -> None:
        self._denoiser = denoiser
        self._reach = Reach(denoiser, tables=False)
        self._counted = _counted(self._reach.weights)
        self._held = [weight.detach() for weight in self._reach.weights]
        self._dtypes = list(map(_dtype, self._held))
        self._writes = list(map(_writes, self._counted))
        self._windows = _windows(self._held)
        self._numbers = [torch.cat(group) for group in self._windows]

    def unchanged(self) -> bool:
        """Whether everything is as it was; about two microseconds for each weight.

        Writes through ``.data`` that leave the first numbers of every weight alone are not seen.
        """
        if not self._reach.intact():
            reach = Reach(self._denoiser, tables=False)
            if reach.modes != self._reach.modes or _parts(reach) != _parts(self._reach):
                return False
            self._reach, self._counted = reach, _counted(reach.weights)  # compared right below
        pairs = zip(self._windows, self._numbers, strict=True)
        return (
            list(map(_writes, self._counted)) == self._writes
            and self._same_memory()
            and all(torch.equal(torch.cat(group), numbers) for group, numbers in pairs)
        )

    def _same_memory(self) -> bool:
        weights = self._reach.weights
        try:
            same = all(map(Tensor.is_set_to, weights, self._held))
        except RuntimeError:  # on another device
            return False
        return same and list(map(_dtype, weights)) == self._dtypes

    def unidentified(self) -> str:
        """Digest of what a fingerprint leaves out: types of modules, and modules that it misses."""
        hashed: set[int] = set()
        for part in identified(self._denoiser):
            values = part.state_dict().values() if isinstance(part, nn.Module) else [part]
            hashed.update(_address(value) for value in values if isinstance(value, Tensor))
        types = [type(part).__qualname__ for part in self._reach.objects if _counts(part)]
        state = hashlib.sha256(f"{types}{self._reach.modes}".encode())
        for weight in self._reach.weights:
            if _address(weight) not in hashed:
                state.update(tensor_bytes(weight)[0])
        return state.hexdigest()


def _counts(part: Any) -> bool:
    """Whether an object is part of a network; other callables may be made anew in every call."""
    return isinstance(part, nn.Module | Tensor | np.ndarray)


def _parts(reach: Reach) -> list[int]:
    """Identities of what a network is made of; whoever compares them holds the objects."""
    return [*map(id, filter(_counts, reach.objects)), len(reach.weights)]


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # made of others
        return 0


def _counted(weights: list[Tensor]) -> list[Tensor]:
    """Those whose writes torch counts; it does not for tensors made in inference mode."""
    return [weight for weight in weights if not weight.is_inference()]


def _windows(held: list[Tensor]) -> list[list[Tensor]]:
    """The first numbers of every tensor, as bytes (NaN equals itself then), by device."""
    groups: dict[Any, list[Tensor]] = {}
    for weight in held:
        sizes = zip(weight.shape, weight.stride(), strict=True)
        span = 1 + sum((length - 1) * stride for length, stride in sizes)
        with contextlib.suppress(RuntimeError):  # of a kind without plain numbers
            numbers = weight.as_strided((min(span, NUMBERS),), (1,)).view(torch.uint8)
            groups.setdefault(weight.device, []).append(numbers)
    return list(groups.values())
