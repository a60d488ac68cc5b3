"""How a callable holds what it computes with: the ways from one object to the next.

A network may stand behind wrappers, closures, globals, default arguments or lists. Certificates
identify what they find on some of these ways (:func:`identified`); deployed planners and captured
graphs watch all of them (:class:`muninn.identity.snapshot.Snapshot`).
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

COMPILED = "_is_torch_compile"  # torch marks so what it compiled; the module stays what it is
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
DEPTH = 5  # objects that certificates look behind, wrappers or lists say
_ELSEWHERE = ("_parameters", "_buffers", "_modules", COMPILED)  # linked above, or of no interest
_MODULE = frozenset(vars(nn.Module()))  # attributes that every module has
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}  # whose code holds nobody's network


class Link(NamedTuple):
    """One way on from an object.

    Certificates follow links that are ``identified``, and go on following the same ones: those
    that were made before would be refused otherwise.
    """

    part: Any  # where it leads
    owner: Any = None  # where the part is looked up; without an owner it stays what it is
    key: Any = None
    attribute: bool = False  # the key is the name of an attribute, not of an item
    distance: int = 1  # 0 for what an object cannot do without: its code, its layers
    identified: bool = True
    named: bool = False  # one of many names of a namespace, most of which lead nowhere
    read: bool = True  # not so for a global that only shares its name with an attribute

    def skipped(self, skip: Collection[Hashable]) -> bool:
        """Whether ``skip`` names what it leads to, or its place: the owner's identity, the key."""
        return id(self.part) in skip or (id(self.owner), self.key) in skip


def identified(
    holder: Any,
    skip: Collection[Hashable] = (),
    left_out: list[str] | None = None,
    depth: int = DEPTH,
) -> Iterator[tuple[str, nn.Module | Tensor | np.ndarray[Any, Any] | float]]:
    """Modules, and tensors, arrays and floats outside of them, by which a callable is known.

    Each comes with the path that leads to it. Passed by is what ``skip`` names, by path or by
    place; its path is added to ``left_out``.
    """
    seen: set[int] = set()

    def walk(part: Any, path: str, left: int) -> Iterator[tuple[str, Any]]:
        if left < 0 or id(part) in seen or isinstance(part, ModuleType | type | bytes):
            return
        seen.add(id(part))
        if isinstance(part, nn.Module | Tensor | np.ndarray | float):
            yield path, part
            return
        for place, link in enumerate(links(part)):
            if link.identified:
                name = f"{path}/{place if link.key is None else link.key}"
                if not (skip and (name in skip or link.skipped(skip))):
                    yield from walk(link.part, name, left - 1)
                elif left_out is not None:
                    left_out.append(name)

    yield from walk(holder, "", depth)


def links(holder: Any) -> Iterator[Link]:
    """All ways on from an object, in a fixed order."""
    if isinstance(holder, dict):
        yield from (Link(part, holder, key) for key, part in holder.items())
    elif isinstance(holder, list):
        yield from (Link(part, holder, place) for place, part in enumerate(holder))
    elif isinstance(holder, tuple):
        yield from map(Link, holder)
    elif isinstance(holder, CONTAINERS):
        yield from (Link(part, identified=False) for part in holder)
    elif isinstance(holder, nn.Module):
        yield from _of_module(holder)
    elif isinstance(holder, type):
        yield from _of_class(holder)
    else:
        if isinstance(holder, functools.partial):
            yield from map(Link, (holder.func, *holder.args, *holder.keywords.values()))
        if isinstance(holder, FunctionType):
            yield from _of_function(holder)
        yield Link(getattr(holder, "__self__", None))
        own = getattr(holder, "__dict__", {})
        yield from (Link(part, own, key) for key, part in own.items())
        yield from of_slots(holder)
        yield Link(type(holder), distance=0, identified=False)
    if isinstance(holder, CONTAINERS):  # of a class of its own, with attributes
        own = getattr(holder, "__dict__", {})
        yield from (Link(part, own, key, identified=False) for key, part in own.items())


def _of_function(function: FunctionType) -> Iterator[Link]:
    """Closure, globals and default arguments, those of functions defined inside included."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield Link(cell.cell_contents, cell, "cell_contents", attribute=True)
    known, own = function.__globals__, function.__code__.co_names
    read = imported = frozenset[str]()
    if not from_library(function):
        read, imported = global_names(function.__code__), imported_names(function.__code__)
    for name in own:  # of attributes, too: certificates have always followed these
        if name in known:
            yield Link(known[name], known, name, named=True, read=name in read)
    for name in sorted(read.difference(own)):
        if name in known:
            yield Link(known[name], known, name, named=True, identified=False)
    modules = [known[name] for name in sorted(read) if isinstance(known.get(name), ModuleType)]
    modules += [sys.modules[name] for name in sorted(imported) if name in sys.modules]
    for module in modules:
        if module.__name__.partition(".")[0] not in _LIBRARIES:  # ``models.network``, say
            held = vars(module)
            for name in own:
                if name in held:
                    yield Link(held[name], held, name, named=True, identified=False)
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        yield Link(getattr(function, name), function, name, True, distance=0, identified=False)


def of_slots(holder: Any) -> Iterator[Link]:
    """Attributes that are not in a dictionary."""
    for kind in type(holder).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{kind.__name__.lstrip('_')}{slot}" if private else slot
            if name not in ("__dict__", "__weakref__") and hasattr(holder, name):
                yield Link(getattr(holder, name), holder, name, attribute=True, identified=False)


def _of_class(kind: type) -> Iterator[Link]:
    """Methods and class attributes, but for those that come from libraries."""
    for base in kind.__mro__:
        if not from_library(base):
            space = vars(base)
            for name, part in space.items():
                code = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
                if code is not part and isinstance(code, FunctionType):
                    yield Link(code, distance=0, identified=False)
                distance = 0 if isinstance(part, FunctionType) else 1
                yield Link(part, space, name, distance=distance, identified=False, named=True)


def from_library(thing: Any) -> bool:
    """Whether a class or function belongs to Python, torch or numpy."""
    return str(getattr(thing, "__module__", None)).partition(".")[0] in _LIBRARIES


def _of_module(module: nn.Module) -> Iterator[Link]:
    """Weights, buffers, submodules, and whatever else is an attribute of a module."""
    own = vars(module)
    for held in (module._parameters, module._buffers, module._modules):
        yield from (Link(part, held, name, distance=0) for name, part in held.items())
    for name, part in own.items():
        # Hooks, nearly always.
        empty = name in _MODULE and isinstance(part, dict | set) and not part
        stands_in = getattr(type(part), "stands_in", False)  # for a method, in a cached policy
        if not (empty or stands_in is True or name in _ELSEWHERE):
            yield Link(part, own, name, identified=False)
    yield Link(type(module), distance=0, identified=False)


# -- names that compiled code uses, functions inside of it included --------------------------------


@functools.lru_cache(maxsize=65536)
def named_by(code: CodeType, *operations: str) -> frozenset[str]:
    """Names that code uses in some operations; without any, all: globals, attributes, imports."""
    found = set(code.co_names)
    if operations:
        steps = dis.get_instructions(code)
        found = {str(step.argval) for step in steps if step.opname in operations}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(found.union(*(named_by(constant, *operations) for constant in inner)))


def global_names(code: CodeType) -> frozenset[str]:
    """Names that code looks up globally."""
    return named_by(code, "LOAD_GLOBAL", "LOAD_NAME")


def imported_names(code: CodeType) -> frozenset[str]:
    """Modules that code imports by itself."""
    return named_by(code, "IMPORT_NAME")
