"""A snapshot of everything that some callables reach, place by place, to notice any later change.

It holds modules, tensors, arrays, functions and plain values behind attributes, items, closures,
default arguments, globals and attributes of modules that code names, and classes. A place is
compared by identity, which takes a few hundredths of a microsecond.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections import defaultdict, deque
from collections.abc import Collection, Hashable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from muninn.identity.digest import named
from muninn.identity.links import CONTAINERS, Link, from_library, links

DEPTH = 8  # objects that are looked behind; certificates look behind fewer
_VALUES = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, np.generic,
    np.dtype, torch.dtype, torch.device, torch.layout,
)  # fmt: skip
_CODE = (
    FunctionType, BuiltinFunctionType, MethodType, CodeType, property, staticmethod, classmethod,
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_FOR_ALL = (_module._global_forward_hooks, _module._global_forward_pre_hooks)  # hooks of any module
_SMALL = 4096  # bytes of an array that are compared as a whole
_writes = operator.attrgetter("_version")

Places = dict[Hashable, Any]
"""Places by identity of their owner, with the owner: an identity means nothing once it is gone."""


class Snapshot:
    """What some callables hold; None and places that ``skip`` names are passed by.

    Functions, methods of classes and hooks are ``code``. Among ``objects`` is whatever else counts
    by identity: modules, arrays, tensors that are made of others, classes, and all that is neither
    a container nor a plain value.
    """

    def __init__(self, *roots: Any, skip: Collection[Hashable] = ()) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []  # with memory of their own, weights and tables alike
        self.arrays: list[Any] = []
        self.code: list[Any] = [hook for hooks in _FOR_ALL for hook in hooks.values()]
        self.objects: list[Any] = []
        self.settings: list[tuple[Any, type, Any]] = []  # name, type and plain value
        # Owners, keys and parts of items and attributes, by how they are looked up: in long lists,
        # because one comparison of all is several times faster than one for each.
        self._places: dict[Any, tuple[list[Any], list[Any], list[Any]]]
        self._places = {operator.getitem: ([], [], []), getattr: ([], [], [])}
        self._bags: list[tuple[Any, list[Any]]] = []
        self._owners: dict[int, list[Link]] = defaultdict(list)  # of tensors, arrays
        self._kept: list[Any] = [*roots]  # identities mean nothing of what is gone
        sized: dict[int, Any] = {id(hooks): hooks for hooks in _FOR_ALL}
        self._walk([root for root in roots if root is not None], skip, sized)
        self.modes = [module.training for module in self.modules]
        self._types = list(map(type, self.objects))
        self._registered = RemovableHandle.next_id
        self._sized = list(sized.values())
        self._sizes = list(map(len, self._sized))
        self._keys = [frozenset(each) if isinstance(each, dict) else () for each in self._sized]
        # torch counts writes in place, but not into tensors made in inference mode.
        self._counted = [tensor for tensor in self.tensors if not tensor.is_inference()]
        self._writes = list(map(_writes, self._counted))
        self._contents = [_content(array) for array in self.arrays]

    def _walk(self, roots: list[Any], skip: Collection[Hashable], sized: dict[int, Any]) -> None:
        seen: set[int] = set()
        queue = deque((root, 0) for root in roots)
        while queue:
            part, depth = queue.popleft()
            if id(part) in seen:
                continue
            self._kept.append(part)
            if depth > DEPTH:
                self.objects.append(part)
                continue
            seen.add(id(part))
            if not self._enter(part, sized):
                continue
            library = isinstance(part, FunctionType) and from_library(part)
            try:
                onward = list(links(part))
            except Exception:  # the object's own, and none of a network's: a dead proxy, say
                continue
            for link in onward:
                if not link.read or (library and link.named) or link.skipped(skip):
                    continue
                if self._follow(part, link):
                    add = queue.append if link.distance else queue.appendleft
                    add((link.part, depth + link.distance))

    def _enter(self, part: Any, sized: dict[int, Any]) -> bool:
        """Note an object; whether to look into it."""
        if isinstance(part, Tensor) and has_memory(part):
            self.tensors.append(part)
            return False
        if isinstance(part, set | frozenset | deque):
            self._bags.append((part, list(part)))
        elif isinstance(part, dict | list):
            sized[id(part)] = part
        if not isinstance(part, (*CONTAINERS, *_CODE)):
            self.objects.append(part)
        if isinstance(part, np.ndarray):
            self.arrays.append(part)
            return False
        if isinstance(part, nn.Module):
            self.modules.append(part)
            hooks = [getattr(part, name, {}) for name in _HOOKS]
            # Most modules have no hooks: torch counts those that are registered anywhere.
            held = (part._parameters, part._buffers, part._modules, *filter(None, hooks))
            sized.update((id(container), container) for container in held)
            self.code += [hook for registered in hooks for hook in registered.values()]
        if isinstance(getattr(part, "__dict__", None), dict) and not isinstance(part, type):
            sized[id(vars(part))] = vars(part)
        return True

    def _follow(self, holder: Any, link: Link) -> bool:
        """Watch the place of a link; whether to go on to what is there."""
        part, key = link.part, link.key
        named = isinstance(key, str)
        private = isinstance(holder, type) and named and key.startswith("__")
        stands_in = getattr(type(part), "stands_in", False) is True  # no part of the network
        if stands_in or (private and not isinstance(part, FunctionType)):
            return False
        own = (  # a bound method of the module's own, as copies of modules have it
            named
            and isinstance(holder, nn.Module)
            and getattr(part, "__func__", 0) is getattr(type(holder), key, None)
        )
        if link.owner is not None and not own:
            owners, keys, parts = self._places[getattr if link.attribute else operator.getitem]
            owners.append(link.owner)
            keys.append(key)
            parts.append(part)
            if isinstance(part, Tensor | np.ndarray):
                self._owners[id(part)].append(link)
        if isinstance(part, _VALUES):
            if key != "training":
                self.settings.append((key, type(part), part))
            return False
        if isinstance(part, _CODE) and not own:
            self.code.append(getattr(part, "__func__", part))
        if isinstance(part, ModuleType) or (isinstance(part, type) and link.distance):
            self.objects.append(part)
            return False
        return not isinstance(part, CodeType)

    def names(self) -> list[str]:
        """The names that users gave to what cannot be hashed, in the order of the walk."""
        kept = {id(part): part for part in self._kept}
        return [name for part in kept.values() if (name := named(part)) is not None]

    # -- compared ------------------------------------------------------------------------------

    def intact(self) -> bool:
        """Whether everything is where it was found."""
        try:
            if RemovableHandle.next_id != self._registered:
                return False
            if list(map(len, self._sized)) != self._sizes:
                return False
            if list(map(type, self.objects)) != self._types:
                return False
            for look, (owners, keys, parts) in self._places.items():
                if not all(map(operator.is_, map(look, owners, keys), parts)):
                    return False
            return not any(map(_changed, self._bags))
        except (LookupError, AttributeError, ValueError, RuntimeError):  # gone, or being changed
            return False

    def unwritten(self) -> bool:
        """Whether nothing was written in place; of large arrays some numbers are compared."""
        return (
            list(map(_writes, self._counted)) == self._writes
            and [_content(array) for array in self.arrays] == self._contents
        )

    def same(self, other: Snapshot) -> bool:
        """Whether another has the same objects, modes, settings and writes, wherever they are."""
        return (
            list(map(id, self.objects)) == list(map(id, other.objects))
            and self.modes == other.modes
            and len(self.tensors) == len(other.tensors)
            and self._writes == other._writes
            and self.settings == other.settings
            and self._contents == other._contents
        )

    def replaced(self) -> Places:
        """Places that hold something else by now, and containers that have grown or shrunk."""
        changed: Places = {id(bag[0]): bag[0] for bag in self._bags if _changed(bag)}
        for owner, size, keys in zip(self._sized, self._sizes, self._keys, strict=True):
            if len(owner) != size:
                changed[id(owner)] = owner
                if isinstance(owner, dict):
                    changed |= {(id(owner), key): owner for key in owner if key not in keys}
        for look, places in self._places.items():
            for owner, key, part in zip(*places, strict=True):
                with contextlib.suppress(LookupError, AttributeError, ValueError):
                    if look(owner, key) is part:
                        continue
                changed[id(owner), key] = owner
        return changed

    def rewritten(self) -> Places:
        """What was :meth:`replaced`, with places of tensors and arrays that were written in place.

        Parameters are left out: a network that rewrites those is another one each time.
        """
        written: list[Any] = [
            tensor
            for tensor, was in zip(self._counted, self._writes, strict=True)
            if tensor._version != was and not isinstance(tensor, nn.Parameter)
        ]
        pairs = zip(self.arrays, self._contents, strict=True)
        written += [array for array, was in pairs if _content(array) != was]
        places = [link for part in written for link in self._owners[id(part)]]
        return {**self.replaced(), **{(id(link.owner), link.key): link.owner for link in places}}


def has_memory(tensor: Tensor) -> bool:
    """Not so for tensors that are made of others, that are still to be filled, or are empty."""
    try:
        return not is_lazy(tensor) and tensor.data_ptr() != 0 and tensor.is_set_to(tensor)
    except RuntimeError:
        return False


def _changed(bag: tuple[Any, list[Any]]) -> bool:
    """Whether a set or a queue holds other elements than it did."""
    now, was = bag
    return len(now) != len(was) or not all(map(operator.is_, now, was))


def _content(array: Any) -> bytes:
    """The bytes of an array, or of some numbers of a large one."""
    some = array
    if array.nbytes > _SMALL:
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        some = flat[:: max(1, array.size // 64)]
    return repr(some).encode() if array.dtype.hasobject else np.ascontiguousarray(some).tobytes()
