"""Where the tensors are that a captured call reads: a graph keeps addresses, not tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from muninn.identity.reach import Places, Reach

_dtype = operator.attrgetter("dtype")


class Addresses:
    """The memory of all tensors that some callables reach, and a hold on it.

    Moving a network, changing its dtype, assigning to its weights or putting another in its place
    gives other addresses; changing values in place does not. Modules, hooks and other callables
    count by identity, and so does train mode. What was found at first is kept alive: an address
    that is still in use here cannot have been given to another tensor.

    Args:
        holders: callables, searched like a certificate's fingerprint and beyond.
        rerun: runs the callables once more. What they replace themselves meanwhile (attention maps
            kept as attributes, say) they make anew in every call: a graph writes it before it is
            read, so it is not looked at.
    """

    def __init__(self, *holders: Any, rerun: Callable[[], Any] | None = None) -> None:
        self._holders = holders
        self._skip: Places = {}
        self._reach = Reach(*holders)
        if rerun is not None:
            rerun()
            self._skip = self._reach.rewritten()
            self._reach = self._look()
        self._held = [tensor.detach() for tensor in self._reach.tensors]
        self._dtypes = list(map(_dtype, self._held))

    def unchanged(self) -> bool:
        """Whether every tensor is where it was; a fraction of a microsecond for each."""
        if self._reach.intact() and self._in_place(self._reach):
            return True
        reach = self._look()  # a place may have changed, yet hold the same memory
        unchanged = self._in_place(reach) and reach.modes == self._reach.modes
        unchanged &= list(map(id, reach.objects)) == list(map(id, self._reach.objects))
        if unchanged:
            self._reach = reach
        return unchanged

    def _look(self) -> Reach:
        return Reach(*self._holders, skip=self._skip)

    def _in_place(self, reach: Reach) -> bool:
        if len(reach.tensors) != len(self._held):
            return False
        try:
            same = all(map(Tensor.is_set_to, reach.tensors, self._held))
        except RuntimeError:  # on another device, or replaced by one that has no address
            return False
        return same and list(map(_dtype, reach.tensors)) == self._dtypes
