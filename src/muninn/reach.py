"""A snapshot of everything a denoiser reaches, to notice later that something changed."""

from __future__ import annotations

import contextlib
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules import module as _module
from torch.nn.parameter import is_lazy

from muninn.links import Link, from_library, links

DEPTH = 8  # objects that are looked behind; certificates look behind fewer
_PLAIN = (int, float, complex, str, bytes, ModuleType)  # where nothing is searched for
_CONTAINERS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
_FOR_ALL = (_module._global_forward_hooks, _module._global_forward_pre_hooks)  # hooks of any module


Places = dict[Hashable, Any]
"""Places by identity of their owner, with the owner: an identity means nothing once it is gone."""


class Reach:
    """Everything that some callables reach, and whether it is still there.

    Attributes:
        tensors: those with memory of their own.
        weights: of these, parameters and persistent buffers of modules, and tensors outside that
            certificates identify.
        objects: what counts by identity: modules, their hooks, other callables, arrays, and
            tensors without memory of their own, as quantised ones are.
        modes: of every module, whether it is in train mode.
        code: what decides which code runs: hooks, methods of classes, functions that modules or
            the code itself name. Empty without ``settings``.
        settings: names and values of the plain settings. Empty without ``settings``.

    Args:
        roots: the callables.
        tables: whether to look at tensors that are no weights.
        settings: whether to look at code and plain settings (numbers, strings, flags) too.
        skip: places to pass by, as :meth:`rewritten` names them.
    """

    def __init__(
        self,
        *roots: Any,
        tables: bool = True,
        settings: bool = False,
        skip: Collection[Hashable] = (),
    ) -> None:
        found, as_table, ways = _search(roots, tables, settings, skip)
        leading = _leading(found, ways) | set(map(id, roots))
        seen = set(leading)
        self.tensors: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.objects: list[Any] = []
        self.modes: list[bool] = []
        self.code: list[Any] = []
        self.settings: list[tuple[Any, Any]] = []
        self._roots = roots  # kept: identities mean nothing of what is gone
        self._items: list[tuple[Any, Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        sized: dict[int, Any] = {}
        if settings:
            sized |= {id(hooks): hooks for hooks in _FOR_ALL}
            self.code += [hook for hooks in _FOR_ALL for hook in hooks.values()]
        for key, part in found.items():
            if key not in leading:
                continue
            if isinstance(part, Tensor) and _has_memory(part):
                self.tensors.append(part)
                self.weights += [] if as_table[key] else [part]
                continue
            if isinstance(part, nn.Module):
                containers = [vars(part), *(getattr(part, name, {}) for name in _CONTAINERS)]
                sized |= {id(container): container for container in containers}
                self.modes.append(part.training)
                hooks = [hook for held in containers[-2:] for hook in held.values()]
                self.objects += hooks
                self.code += hooks if settings else []
            if isinstance(part, Tensor | np.ndarray) or callable(part):
                self.objects.append(part)
            for link in ways[key]:
                self._watch(link, id(link.part) in leading, sized)
                if settings:
                    self._note(part, link, ways, seen)
        self._sized = list(sized.values())
        self._sizes = list(map(len, self._sized))
        self._places = _grouped(self._items)

    def _watch(self, link: Link, leads: bool, sized: dict[int, Any]) -> None:
        """Look at the place of a link from now on, if what is there counts or may come to count."""
        part, owner = link.part, link.owner
        may_count = part is None or callable(part) or link.key == "training"
        if owner is None or not (leads or (may_count and not link.named)):
            return
        self._look_at(link)
        if not leads and callable(part):
            self.objects.append(part)
        if not (link.attribute or link.named):
            sized[id(owner)] = owner

    def _look_at(self, link: Link) -> None:
        if link.attribute:
            self._attributes.append((link.owner, link.key, link.part))
        else:
            self._items.append((link.owner, link.key, link.part))

    def _note(self, holder: Any, link: Link, ways: dict[int, list[Link]], seen: set[int]) -> None:
        """Remember the code or the setting that a link leads to, or those one object further."""
        part, further = link.part, ways.get(id(link.part), [])
        if not link.read:
            return
        if isinstance(part, _PLAIN):
            self._note_setting(link)
        elif isinstance(part, type):
            if id(part) not in seen:
                seen.add(id(part))
                self._note_class(further, ways)
        elif callable(part):
            module = isinstance(holder, nn.Module)
            own = module and getattr(part, "__func__", 0) is getattr(type(holder), link.key, None)
            if (link.named or module) and not own:
                self._note_code(link)
        elif id(part) not in seen:  # a configuration, say
            for setting in further:
                if isinstance(setting.part, _PLAIN):
                    self._note_setting(setting)

    def _note_class(self, held: list[Link], ways: dict[int, list[Link]]) -> None:
        """The methods of a class, its settings, and the functions and settings these name."""
        for link in held:
            if isinstance(link.part, _PLAIN):
                self._note_setting(link)
            elif link.code:
                self._note_code(link)
                for named in ways.get(id(link.part), []):
                    if not named.read:
                        continue
                    if isinstance(named.part, _PLAIN):
                        self._note_setting(named)
                    elif named.named and callable(named.part):
                        self._note_code(named)

    def _note_code(self, link: Link) -> None:
        if link.owner is not None and not isinstance(link.part, nn.Module | type):
            self.code.append(link.part)
            self._look_at(link)

    def _note_setting(self, link: Link) -> None:
        private = isinstance(link.key, str) and link.key.startswith("__")
        if link.owner is None or private or link.key == "training":
            return
        self.settings.append((link.key, link.part))
        self._look_at(link)

    def intact(self) -> bool:
        """Whether everything is where it was found; a few hundredths of a microsecond for each."""
        try:
            if list(map(len, self._sized)) != self._sizes:
                return False
            for owner, look, parts in self._places:
                if not all(map(operator.is_, look(owner), parts)):
                    return False
            return all(getattr(owner, name) is part for owner, name, part in self._attributes)
        except (LookupError, AttributeError, ValueError):  # gone, or a cell that was emptied
            return False

    def rewritten(self) -> Places:
        """Places that hold something else by now, and containers that have grown or shrunk."""
        here: list[tuple[Any, Any, Any, Callable[[Any, Any], Any]]]
        here = [(*place, operator.getitem) for place in self._items]
        here += [(*place, getattr) for place in self._attributes]
        sizes = zip(self._sized, self._sizes, strict=True)
        changed: Places = {id(owner): owner for owner, size in sizes if len(owner) != size}
        for owner, key, part, look in here:
            with contextlib.suppress(LookupError, AttributeError, ValueError):
                if look(owner, key) is part:
                    continue
            changed[id(owner), key] = owner
        return changed


Place = tuple[Any, Callable[[Any], tuple[Any, ...]], tuple[Any, ...]]
"""An owner, a function that looks up some of its items at once, and what these were."""


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


def _search(
    roots: tuple[Any, ...], tables: bool, settings: bool, skip: Collection[Hashable]
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
            if skipped or (plain and not (mode or settings)) or (library and link.named):
                continue
            ways[key].append(link)
            if on is not None and not plain:
                inside = table and not isinstance(part, nn.Module)
                add = queue.append if link.distance else queue.appendleft
                add((on, depth + link.distance, inside or link.table or not link.identified))
    return found, as_table, ways


def _onward(part: Any) -> list[Link]:
    """Where to go on from an object; nowhere from memory, and from what cannot be looked into."""
    if isinstance(part, np.ndarray) or (isinstance(part, Tensor) and _has_memory(part)):
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


def _has_memory(tensor: Tensor) -> bool:
    """Not so for tensors that are made of others, that are still to be filled, or are empty."""
    try:
        return not is_lazy(tensor) and tensor.data_ptr() != 0 and tensor.is_set_to(tensor)
    except RuntimeError:
        return False
