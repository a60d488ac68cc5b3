"""Everything that some callables hold, place by place, as it is now: to notice any later change.

Found are modules, tensors, arrays, functions and plain values behind attributes, items, closures,
default arguments, globals and attributes of modules that code names, and classes. A place is
compared by identity, which takes a few hundredths of a microsecond.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module
from torch.utils.hooks import RemovableHandle

from muninn.identity.links import Link, from_library, links
from muninn.identity.reach import DEPTH, Places, has_memory

_VALUES = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, np.generic,
    np.dtype, torch.dtype, torch.device, torch.layout,
)  # fmt: skip
_CODE = (FunctionType, BuiltinFunctionType, MethodType, property, staticmethod, classmethod)
_BAGS = (set, frozenset, deque)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_FOR_ALL = (_module._global_forward_hooks, _module._global_forward_pre_hooks)  # hooks of any module
_SMALL = 4096  # bytes of an array that are compared as a whole

Place = tuple[Any, Callable[[Any], tuple[Any, ...]], tuple[Any, ...]]
"""An owner, a function that looks up some of its items at once, and what these were."""


class Snapshot:
    """What some callables hold.

    Attributes:
        modules: with their train mode in ``modes``.
        tensors, arrays: all of them, weights and tables alike.
        code: functions, methods of classes and hooks, which count by identity.
        settings: names and plain values.

    Args:
        roots: the callables; None is passed by.
        skip: places to pass by, as :meth:`rewritten` names them.
    """

    def __init__(self, *roots: Any, skip: Collection[Hashable] = ()) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        self.arrays: list[Any] = []
        self.code: list[Any] = [hook for hooks in _FOR_ALL for hook in hooks.values()]
        self.settings: list[tuple[Any, Any]] = []
        self._items: list[tuple[Any, Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._bags: list[tuple[Any, list[Any]]] = []
        self._owners: dict[int, list[tuple[Any, Any]]] = defaultdict(list)  # of tensors, arrays
        self._kept: list[Any] = [*roots]  # identities mean nothing of what is gone
        sized: dict[int, Any] = {id(hooks): hooks for hooks in _FOR_ALL}
        self._walk([root for root in roots if root is not None], skip, sized)
        self.modes = [module.training for module in self.modules]
        self._registered = RemovableHandle.next_id
        self._sized = list(sized.values())
        self._sizes = list(map(len, self._sized))
        self._keys = [frozenset(each) if isinstance(each, dict) else () for each in self._sized]
        self._writes = [_writes(tensor) for tensor in self.tensors]
        self._contents = [_content(array) for array in self.arrays]
        self._places = _grouped(self._items)

    def _walk(self, roots: list[Any], skip: Collection[Hashable], sized: dict[int, Any]) -> None:
        seen: set[int] = set()
        queue = deque((root, 0) for root in roots)
        while queue:
            part, depth = queue.popleft()
            if depth > DEPTH or id(part) in seen:
                continue
            seen.add(id(part))
            self._kept.append(part)
            if not self._enter(part, sized):
                continue
            library = isinstance(part, FunctionType) and from_library(part)
            for link in _onward(part):
                if (id(link.owner), link.key) in skip or id(link.part) in skip:
                    continue
                if not link.read or (library and link.named):
                    continue
                if self._follow(part, link):
                    add = queue.append if link.distance else queue.appendleft
                    add((link.part, depth + link.distance))

    def _enter(self, part: Any, sized: dict[int, Any]) -> bool:
        """Note an object; whether to look into it."""
        if isinstance(part, Tensor):
            if has_memory(part):
                self.tensors.append(part)
                return False
        elif isinstance(part, np.ndarray):
            self.arrays.append(part)
            return False
        elif isinstance(part, nn.Module):
            self.modules.append(part)
            hooks = [getattr(part, name, {}) for name in _HOOKS]
            held = (part._parameters, part._buffers, part._modules, *hooks)
            # Of empty ones there are many: torch counts the hooks that are registered anywhere.
            for container in (vars(part), *filter(None, held)):
                sized[id(container)] = container
            self.code += [hook for registered in hooks for hook in registered.values()]
        elif isinstance(part, dict | list):
            sized[id(part)] = part
        elif isinstance(part, _BAGS):
            self._bags.append((part, list(part)))
        elif isinstance(getattr(part, "__dict__", None), dict) and not isinstance(part, type):
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
            place = (link.owner, key, part)
            (self._attributes if link.attribute else self._items).append(place)
            if isinstance(part, Tensor | np.ndarray):
                self._owners[id(part)].append((link.owner, key))
        if isinstance(part, _VALUES):
            if key != "training":
                self.settings.append((key, part))
            return False
        if isinstance(part, ModuleType):
            return False
        if isinstance(part, _CODE) and not own:
            self.code.append(getattr(part, "__func__", part))
        return not isinstance(part, type) or link.distance == 0

    # -- compared ------------------------------------------------------------------------------

    def intact(self) -> bool:
        """Whether everything is where it was found."""
        try:
            if RemovableHandle.next_id != self._registered:
                return False
            if list(map(len, self._sized)) != self._sizes:
                return False
            for owner, look, parts in self._places:
                if not all(map(operator.is_, look(owner), parts)):
                    return False
            for bag, elements in self._bags:
                if not all(map(operator.is_, bag, elements)) or len(bag) != len(elements):
                    return False
            return all(getattr(owner, name) is part for owner, name, part in self._attributes)
        except (LookupError, AttributeError, ValueError, RuntimeError):  # gone, or being changed
            return False

    def same_arrays(self) -> bool:
        """Whether arrays hold what they held; of large ones some numbers are compared."""
        return all(_content(a) == was for a, was in zip(self.arrays, self._contents, strict=True))

    def same(self, other: Snapshot) -> bool:
        """Whether another snapshot has the same modules, modes and settings, wherever they are."""
        return (
            list(map(id, self.modules)) == list(map(id, other.modules))
            and self.modes == other.modes
            and len(self.tensors) == len(other.tensors)
            and self.settings == other.settings
            and [_content(array) for array in other.arrays] == self._contents
        )

    def rewritten(self) -> Places:
        """Places that hold something else by now, with what was added or written in place.

        Parameters are left out: a network that rewrites those is another one each time.
        """
        changed: Places = {}
        for owner, size, keys in zip(self._sized, self._sizes, self._keys, strict=True):
            if len(owner) != size:
                changed[id(owner)] = owner
                if isinstance(owner, dict):
                    changed |= {(id(owner), key): owner for key in owner if key not in keys}
        here: list[tuple[Any, Any, Any, Callable[[Any, Any], Any]]]
        here = [(*place, operator.getitem) for place in self._items]
        here += [(*place, getattr) for place in self._attributes]
        for owner, key, part, look in here:
            with contextlib.suppress(LookupError, AttributeError, ValueError):
                if look(owner, key) is part:
                    continue
            changed[id(owner), key] = owner
        changed |= {id(bag): bag for bag, elements in self._bags if list(bag) != elements}
        written = [
            tensor
            for tensor, was in zip(self.tensors, self._writes, strict=True)
            if _writes(tensor) != was and not isinstance(tensor, nn.Parameter)
        ]
        pairs = zip(self.arrays, self._contents, strict=True)
        written += [array for array, was in pairs if _content(array) != was]
        for part in written:
            changed |= {(id(owner), key): owner for owner, key in self._owners[id(part)]}
        return changed


def _onward(part: Any) -> list[Link]:
    """Where to go on from an object; nowhere from what cannot be looked into."""
    try:
        return list(links(part))
    except Exception:  # the object's own, and none of a network's: a dead proxy, say
        return []


def _writes(tensor: Tensor) -> int:
    """torch's count of writes in place; it keeps none for tensors made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def _content(array: Any) -> bytes:
    """The bytes of an array, or of some numbers of a large one."""
    some = array
    if array.nbytes > _SMALL:
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        some = flat[:: max(1, array.size // 64)]
    return repr(some).encode() if array.dtype.hasobject else np.ascontiguousarray(some).tobytes()


def _grouped(items: list[tuple[Any, Any, Any]]) -> list[Place]:
    """Items by owner: one look a container is several times faster than one an item."""
    owners: dict[int, Any] = {}
    keys, parts = defaultdict(list), defaultdict(list)
    for owner, key, part in items:
        owners[id(owner)] = owner
        keys[id(owner)].append(key)
        parts[id(owner)].append(part)
    places: list[Place] = []
    for place, owner in owners.items():
        names, values = keys[place], parts[place]
        if len(names) == 1:  # of one name, itemgetter returns no tuple
            names, values = names * 2, values * 2
        places.append((owner, operator.itemgetter(*names), tuple(values)))
    return places
