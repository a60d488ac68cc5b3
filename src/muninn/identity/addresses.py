"""Where the tensors are that a captured call reads: a graph keeps addresses, not tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable
from typing import Any

import numpy as np
from torch import Tensor

from muninn.identity.snapshot import Places, Snapshot

_dtype = operator.attrgetter("dtype")


class Held:
    """A :class:`Snapshot` of some callables, and a hold on the memory of their tensors.

    An address that is still in use here cannot have been given to another tensor.
    """

    def __init__(self, *roots: Any, skip: Collection[Hashable] = ()) -> None:
        self._roots = roots
        self._skip = skip
        self._snapshot = self._look()
        self._held = [tensor.detach() for tensor in self._snapshot.tensors]
        self._dtypes = list(map(_dtype, self._held))

    def _look(self) -> Snapshot:
        return Snapshot(*self._roots, skip=self._skip)

    def _same_memory(self) -> bool:
        tensors = self._snapshot.tensors
        try:
            same = all(map(Tensor.is_set_to, tensors, self._held))
        except RuntimeError:  # on another device, or replaced by one that has no address
            return False
        return same and list(map(_dtype, tensors)) == self._dtypes


class Addresses(Held):
    """The memory of all tensors that some callables reach.

    Moving a network, changing its dtype, assigning to its weights or putting another in its place
    gives other addresses; changing values in place does not. Modules, hooks, arrays and callables
    count by identity, and so does train mode.

    ``rerun`` runs the callables once more. Attributes that they replace then (attention maps, say)
    are ignored: a graph writes them before it reads them.
    """

    def __init__(self, *roots: Any, rerun: Callable[[], Any] | None = None) -> None:
        skip: Places = {}
        if rerun is not None:
            before = Snapshot(*roots)
            rerun()
            skip = before.replaced()
        super().__init__(*roots, skip=skip)

    def unchanged(self) -> bool:
        """Whether every tensor is where it was; a fraction of a microsecond for each."""
        if not self._snapshot.intact():
            now, was = self._look(), self._snapshot
            if now.modes != was.modes or _counted(now) != _counted(was):
                return False
            self._snapshot = now  # a place may have changed, yet hold the same memory
        return self._same_memory()


def _counted(snapshot: Snapshot) -> list[int]:
    """Identities of what a captured call runs or reads; plain settings are no part of it."""
    counted = [
        part for part in snapshot.objects if callable(part) or isinstance(part, Tensor | np.ndarray)
    ]
    return [id(part) for part in (*snapshot.code, *counted)]
