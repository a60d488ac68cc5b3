"""A snapshot of the tensors, modules and callables that a denoiser reaches, for captured graphs."""

from __future__ import annotations

import contextlib
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from muninn.identity.links import Link, from_library, links

DEPTH = 8  # objects that are looked behind; certificates look behind fewer
_PLAIN = (int, float, complex, str, bytes, ModuleType)  # where nothing is searched for
_CONTAINERS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


Places = dict[Hashable, Any]
"""Places by identity of their owner, with the owner: an identity means nothing once it is gone."""


class Reach:
    """The tensors, modules and callables that some callables reach, and whether they are there.

    Attributes:
        tensors: those with memory of their own.
        weights: of these, parameters and persistent buffers of modules, and tensors outside that
            certificates identify.
        objects: what counts by identity: modules, their hooks, other callables, arrays, and
            tensors without memory of their own, as quantised ones are.
        modes: of every module, whether it is in train mode.

    Args:
        roots: the callables.
        tables: whether to look at tensors that are no weights.
        skip: places to pass by, as :meth:`rewritten` names them.
    """

    def __init__(self, *roots: Any, tables: bool = True, skip: Collection[Hashable] = ()) -> None:
        found, as_table, ways = _search(roots, tables, skip)
        leading = _leading(found, ways) | set(map(id, roots))
        self.tensors: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.objects: list[Any] = []
        self.modes: list[bool] = []
        self._items: list[tuple[Any, Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        sized: dict[int, Any] = {}
        for key, part in found.items():
            if key not in leading:
                continue
            if isinstance(part, Tensor) and has_memory(part):
                self.tensors.append(part)
                self.weights += [] if as_table[key] else [part]
                continue
            if isinstance(part, nn.Module):
                containers = [vars(part), *(getattr(part, name, {}) for name in _CONTAINERS)]
                sized |= {id(container): container for container in containers}
                self.modes.append(part.training)
                self.objects += [hook for hooks in containers[-2:] for hook in hooks.values()]
            if isinstance(part, Tensor | np.ndarray) or callable(part):
                self.objects.append(part)
            for link in ways[key]:
                self._watch(link, id(link.part) in leading, sized)
        self._sizes = [(container, len(container)) for container in sized.values()]

    def _watch(self, link: Link, leads: bool, sized: dict[int, Any]) -> None:
        """Look at the place of a link from now on, if what is there counts or may come to count."""
        part, owner = link.part, link.owner
        may_count = part is None or callable(part) or link.key == "training"
        if owner is None or not (leads or (may_count and not link.named)):
            return
        if link.attribute:
            self._attributes.append((owner, link.key, part))
        else:
            self._items.append((owner, link.key, part))
        if not leads and callable(part):
            self.objects.append(part)
        if not (link.attribute or link.named):
            sized[id(owner)] = owner

    def intact(self) -> bool:
        """Whether everything is where it was found; a few hundredths of a microsecond for each."""
        try:
            for owner, key, part in self._items:
                if owner[key] is not part:
                    return False
            for owner, size in self._sizes:
                if len(owner) != size:
                    return False
            return all(getattr(owner, name) is part for owner, name, part in self._attributes)
        except (LookupError, AttributeError, ValueError):  # gone, or a cell that was emptied
            return False

    def rewritten(self) -> Places:
        """Places that hold something else by now, and containers that have grown or shrunk."""
        here: list[tuple[Any, Any, Any, Callable[[Any, Any], Any]]]
        here = [(*place, operator.getitem) for place in self._items]
        here += [(*place, getattr) for place in self._attributes]
        changed: Places = {id(owner): owner for owner, size in self._sizes if len(owner) != size}
        for owner, key, part, look in here:
            with contextlib.suppress(LookupError, AttributeError, ValueError):
                if look(owner, key) is part:
                    continue
            changed[id(owner), key] = owner
        return changed


def _search(
    roots: tuple[Any, ...], tables: bool, skip: Collection[Hashable]
) -> tuple[dict[int, Any], dict[int, bool], dict[int, list[Link]]]:
    """What is reached, nearest first; whether as a table only; the ways on from each. All by id."""
    found: dict[int, Any] = {}
    as_table: dict[int, bool] = {}
    ways: dict[int, list[Link]] = {}
    queue = deque((root, 0, False) for root in roots)
    while queue:
        part, depth, table = queue.popleft()
        key = id(part)
        if depth > DEPTH or as_table.get(key, 2) <= table:
            continue
        if isinstance(part, Tensor) and table and not tables:
            continue
        found[key], as_table[key], ways[key] = part, table, []
        library = isinstance(part, FunctionType) and from_library(part)
        for link in _onward(part):
            on, mode = link.part, link.key == "training"
            plain = isinstance(on, _PLAIN) or (isinstance(on, type) and link.distance > 0)
            skipped = id(on) in skip or (id(link.owner), link.key) in skip
            if skipped or (plain and not mode) or (library and link.named):
                continue
            ways[key].append(link)
            if on is not None and not plain:
                inside = table and not isinstance(part, nn.Module)
                add = queue.append if link.distance else queue.appendleft
                add((on, depth + link.distance, inside or link.table or not link.identified))
    return found, as_table, ways


def _onward(part: Any) -> list[Link]:
    """Where to go on from an object; nowhere from memory, and from what cannot be looked into."""
    if isinstance(part, np.ndarray) or (isinstance(part, Tensor) and has_memory(part)):
        return []
    try:
        return list(links(part))
    except Exception:  # the object's own, and none of a network's: a dead proxy, say
        return []


def _leading(found: dict[int, Any], ways: dict[int, list[Link]]) -> set[int]:
    """Tensors, arrays, modules, and all that leads to them."""
    back = defaultdict(list)
    for key, onward in ways.items():
        for link in onward:
            back[id(link.part)].append(key)
    tips = [key for key, part in found.items() if isinstance(part, Tensor | np.ndarray | nn.Module)]
    leading = set(tips)
    while tips:
        new = set(back[tips.pop()]) - leading
        leading |= new
        tips += new
    return leading


def has_memory(tensor: Tensor) -> bool:
    """Not so for tensors that are made of others, that are still to be filled, or are empty."""
    try:
        return not is_lazy(tensor) and tensor.data_ptr() != 0 and tensor.is_set_to(tensor)
    except RuntimeError:
        return False
