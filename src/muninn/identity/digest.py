"""A content hash of anything a calibration depends on: functions, their settings, contexts.

A calibration that is resumed must be the same calibration. So a metric is hashed with everything
it reads: its code, constants, default arguments, closure, globals, the arguments of a ``partial``,
the attributes of a callable object. What cannot be compared between two runs is refused, and the
error says how to name it.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib
import inspect
import logging
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from muninn.errors import CalibrationError, InputError
from muninn.identity.links import global_names, imported_names, named_by, of_slots

NAME = "muninn_identity"
"""The attribute by which a user names what cannot be hashed: a string, or a method for one.

Certificates count it with the weights: a denoiser that runs a file elsewhere (ONNX Runtime,
TensorRT) names the file's hash."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice)
_PRINTED = (torch.dtype, torch.device, np.dtype, np.generic, PurePath, re.Pattern)
_SKIPPED = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__orig_bases__",
    "__parameters__", "__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl",
}  # fmt: skip
_STANDARD = str(Path(sysconfig.get_path("stdlib")).resolve())
_CONTAINERS = (dict, list, tuple, set, frozenset, types.MappingProxyType)
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "muninn"}


def digest(thing: Any, what: str) -> str:
    """Hash of a function, an object or a context, with all that it reads.

    Functions and classes of installed packages count by name; their arguments, closures and
    attributes are hashed. Messages call it ``what``. A part that cannot be compared between two
    runs is a CalibrationError, which says how to name it.

    >>> digest({"scale": 2.0}, "metric") == digest({"scale": 3.0}, "metric")
    False
    """
    walk = _Walk(what)
    try:
        walk.add(thing, what)
    except RecursionError as error:
        raise walk.refusal(thing, what) from error
    return walk.state.hexdigest()[:32]


def tensor_bytes(tensor: Tensor) -> tuple[bytes, int]:
    """Content of a tensor with shape and dtype, and how many numbers; InputError if it has none."""
    if is_lazy(tensor):
        raise InputError("the network has layers without weights yet; run it once first")
    data = tensor.detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tuple(data.shape)}{data.dtype}".encode() + raw, data.numel()


class _Walk:
    """One hash under way; each object is entered once, then referred to by its number."""

    def __init__(self, what: str) -> None:
        self.state = hashlib.sha256()
        self._what = what
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # a number stands for an object only while that lives

    def refusal(self, thing: Any, path: str) -> CalibrationError:
        return CalibrationError(
            f"resume= cannot be used: {path} is a {type(thing).__qualname__}, which cannot be "
            f"compared between two runs. Name it: set its attribute {NAME} to a string that you "
            f"change whenever it changes (for a function, {self._what}.{NAME} = 'v1'), or "
            "calibrate without resume"
        )

    def _note(self, *words: object) -> None:
        self.state.update((repr(words) + "\n").encode())

    def add(self, thing: Any, path: str) -> None:
        """Hash an object; ``path`` leads to it, for messages."""
        if isinstance(thing, _PLAIN + _PRINTED) and not isinstance(thing, enum.Enum):
            self._note(type(thing).__qualname__, repr(thing))
            if not installed(type(thing)):
                self.add(type(thing), f"type of {path}")
            return
        if id(thing) in self._seen:
            self._note("again", self._seen[id(thing)])
            return
        self._seen[id(thing)] = len(self._seen)
        self._kept.append(thing)
        if (name := named(thing)) is not None:
            self._note("named", name)
        elif isinstance(thing, Tensor):
            self._note("tensor")
            self.state.update(tensor_bytes(thing)[0])
        elif isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            self._note("array", thing.shape, str(thing.dtype))
            self.state.update(np.ascontiguousarray(thing).tobytes())
        else:
            self._note(type(thing).__qualname__)
            for name, part in self._parts(thing, path):
                self._note(name)
                self.add(part, f"{name} in {path}")

    def _parts(self, thing: Any, path: str) -> Iterator[tuple[str, Any]]:
        """What an object is made of, by name, in a fixed order."""
        if isinstance(thing, types.ModuleType):
            yield "name", thing.__name__
            file = getattr(thing, "__file__", None)
            if file is not None and not installed(thing):
                with contextlib.suppress(OSError):
                    yield "source", Path(file).read_bytes()
        elif isinstance(thing, logging.Logger):
            yield "name", thing.name
        elif isinstance(thing, type):
            yield from _of_class(thing)
        elif isinstance(thing, types.FunctionType):
            yield from _of_function(thing)
        elif isinstance(thing, types.CodeType):
            names = thing.co_names, thing.co_varnames, thing.co_freevars
            yield "code", repr((thing.co_code, *names))
            yield from (("constant", constant) for constant in thing.co_consts)
        elif isinstance(thing, enum.Enum):
            yield "name", thing.name
            yield "value", thing.value
        elif isinstance(thing, types.BuiltinFunctionType | types.MethodType):
            yield "function", getattr(thing, "__func__", thing.__qualname__)
            yield "__self__", thing.__self__
        elif isinstance(thing, functools.partial):
            yield "partial", [thing.func, thing.args, thing.keywords]
        else:
            if isinstance(thing, Mapping | types.MappingProxyType):
                for key, value in thing.items():
                    yield "key", key
                    yield f"[{key!r:.40}]", value
            elif isinstance(thing, list | tuple):
                yield from ((f"[{place}]", value) for place, value in enumerate(thing))
            elif isinstance(thing, set | frozenset):
                yield "elements", sorted(digest(value, f"an element of {path}") for value in thing)
            if type(thing) not in _CONTAINERS:
                yield from self._of_object(thing, path)

    def _of_object(self, thing: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Class and attributes; where it has none, what pickle would keep."""
        yield "type", type(thing)
        held = dict(getattr(thing, "__dict__", {}))
        held |= {link.key: link.part for link in of_slots(thing)}
        yield from held.items()
        if held:
            return
        try:
            kept = thing.__reduce_ex__(4)
        except Exception as error:  # locks, files, handles of simulators: whatever they raise
            raise self.refusal(thing, path) from error
        for part in (kept,) if isinstance(kept, str) else kept:
            yield "state", list(part) if isinstance(part, Iterator) else part


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Name, and what classes of the user's own define."""
    yield "name", (kind.__module__ if installed(kind) else "") + kind.__qualname__
    for base in kind.__mro__:
        if not installed(base):
            for name, value in vars(base).items():
                slot = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
                if not (name in _SKIPPED or slot):
                    yield name, _behind(value)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Arguments and closure; of one of the user's own also code, globals and imports."""
    code, known = function.__code__, function.__globals__
    for name in ("__defaults__", "__kwdefaults__", "__dict__"):
        yield name, getattr(function, name)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield from _read(name, cell.cell_contents, code)
    if installed(function):
        yield "name", f"{function.__module__}.{function.__qualname__}"
        return
    yield "__code__", code
    for name in sorted(global_names(code) & known.keys()):
        yield from _read(name, known[name], code)
    for name in sorted(imported_names(code)):
        with contextlib.suppress(ImportError, ValueError):
            yield from _read(name, importlib.import_module(name), code)


def _read(name: str, thing: Any, code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """What code reads by a name; of a module of the user's own also by the names it uses."""
    yield name, thing
    if isinstance(thing, types.ModuleType) and not installed(thing):
        for member in sorted(named_by(code) & vars(thing).keys()):
            yield from _read(member, vars(thing)[member], code)


def installed(thing: Any) -> bool:
    """Whether a class, function or module comes with Python, a package, or Muninn itself."""
    own = thing if isinstance(thing, types.ModuleType) else None
    module = own or sys.modules.get(str(getattr(thing, "__module__", None)))
    name = getattr(module, "__name__", "__main__")
    if name.partition(".")[0] in _LIBRARIES:
        return True
    file = getattr(module, "__file__", None)
    if file is None or name == "__main__":
        return False
    path = Path(file).resolve()
    packages = {"site-packages", "dist-packages"}
    return str(path).startswith(_STANDARD) or not packages.isdisjoint(path.parts)


def named(thing: Any) -> str | None:
    """The name that a user gave to an object, or None."""
    if isinstance(thing, type) or inspect.getattr_static(thing, NAME, None) is None:
        return None  # what answers to any name is not asked: that may run code of its own
    try:
        name = getattr(thing, NAME)
        name = name() if callable(name) else name
    except Exception:  # the object's own
        return None
    return name if isinstance(name, str) else None


def _behind(value: Any) -> Any:
    """The functions of a property, the function of a static or class method."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, functools.cached_property):
        return value.func  # beside it, Python keeps a lock until 3.12
    return getattr(value, "__func__", value)
