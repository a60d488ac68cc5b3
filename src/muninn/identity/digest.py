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
import logging
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)  # fmt: skip
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from muninn.errors import CalibrationError, InputError
from muninn.identity.code_names import all_names, global_names, imported_names
from muninn.identity.links import of_slots

NAME = "muninn_identity"
"""The attribute by which a user names what cannot be hashed: a string, or a method for one."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice)
_PRINTED = (torch.dtype, torch.device, np.dtype, np.generic, PurePath, re.Pattern)
_SKIPPED = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__orig_bases__",
    "__parameters__", "__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl",
}  # fmt: skip
_STANDARD = str(Path(sysconfig.get_path("stdlib")).resolve())
_CONTAINERS = (dict, list, tuple, set, frozenset, MappingProxyType)
_DESCRIPTORS = (MemberDescriptorType, GetSetDescriptorType)
_PACKAGES = {"site-packages", "dist-packages"}
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "muninn"}


def digest(thing: Any, what: str) -> str:
    """Hash of a function, an object or a context, with all that it reads.

    Functions and classes of installed packages count by name; their arguments, closures and
    attributes are hashed.

    >>> digest({"scale": 2.0}, "metric") == digest({"scale": 3.0}, "metric")
    False

    Args:
        thing: what is hashed.
        what: its name in messages, ``metric`` say.

    Raises:
        CalibrationError: a part cannot be compared between two runs; says which, and how to
            name it.
    """
    walk = _Walk(what)
    try:
        walk.add(thing, what)
    except RecursionError as error:
        raise walk.refusal(thing, what) from error
    return walk.state.hexdigest()[:32]


def tensor_bytes(tensor: Tensor) -> tuple[bytes, int]:
    """Content of a tensor, its shape and dtype included, and how many numbers it has.

    Raises:
        InputError: it has no numbers yet.
    """
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
                self.add(type(thing), f"type({path})")
            return
        if id(thing) in self._seen:
            self._note("again", self._seen[id(thing)])
            return
        self._seen[id(thing)] = len(self._seen)
        self._kept.append(thing)
        if (name := _named(thing)) is not None:
            self._note("named", name)
        elif isinstance(thing, Tensor):
            self._note("tensor")
            self.state.update(tensor_bytes(thing)[0])
        elif isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            self._note("array", thing.shape, str(thing.dtype))
            self.state.update(np.ascontiguousarray(thing).tobytes())
        else:
            self._parts(thing, path)

    def _parts(self, thing: Any, path: str) -> None:
        self._note(type(thing).__qualname__)
        if isinstance(thing, ModuleType):
            self._module(thing, path)
        elif isinstance(thing, logging.Logger):
            self._note(thing.name)
        elif isinstance(thing, type):
            self._class(thing, path)
        elif isinstance(thing, FunctionType):
            self._function(thing, path)
        elif isinstance(thing, enum.Enum):
            self._note(thing.name)
            self.add(thing.value, f"{path}.value")
        elif isinstance(thing, BuiltinFunctionType):
            self._note(thing.__qualname__)
            self.add(thing.__self__, f"{path}.__self__")
        elif isinstance(thing, MethodType):
            self.add(thing.__func__, path)
            self.add(thing.__self__, f"{path}.__self__")
        elif isinstance(thing, functools.partial):
            self.add([thing.func, thing.args, thing.keywords], path)
        else:
            self._container(thing, path)

    def _container(self, thing: Any, path: str) -> None:
        if isinstance(thing, Mapping | MappingProxyType):
            for key, value in thing.items():
                self.add(key, f"key of {path}")
                self.add(value, f"{path}[{key!r}]")
        elif isinstance(thing, list | tuple):
            for place, value in enumerate(thing):
                self.add(value, f"{path}[{place}]")
        elif isinstance(thing, set | frozenset):
            self._note(sorted(digest(value, f"{path} (an element)") for value in thing))
        if type(thing) not in _CONTAINERS:
            self._object(thing, path)

    def _read(self, name: str, thing: Any, code: CodeType, path: str) -> None:
        """What code reads by a name; of a module of the user's own also by the names it uses."""
        self._note(name)
        self.add(thing, f"{name} in {path}")
        if isinstance(thing, ModuleType) and not installed(thing):
            for member in sorted(all_names(code) & vars(thing).keys()):
                self._read(member, vars(thing)[member], code, f"{name} in {path}")

    def _module(self, module: ModuleType, path: str) -> None:
        """By name; one of the user's own by its source, too."""
        self._note(module.__name__)
        file = getattr(module, "__file__", None)
        if file is not None and not installed(module):
            with contextlib.suppress(OSError):
                self.state.update(Path(file).read_bytes())

    def _class(self, kind: type, path: str) -> None:
        self._note(kind.__module__ if installed(kind) else "", kind.__qualname__)
        for base in kind.__mro__:
            if not installed(base):
                for name, value in vars(base).items():
                    if not (name in _SKIPPED or isinstance(value, _DESCRIPTORS)):
                        self._note(name)
                        self.add(_behind(value), f"{path}.{name}")

    def _function(self, function: FunctionType, path: str) -> None:
        for name in ("__defaults__", "__kwdefaults__", "__dict__"):
            self.add(getattr(function, name), f"{path}.{name}")
        code, known = function.__code__, function.__globals__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is still empty
                self._read(name, cell.cell_contents, code, path)
        if installed(function):
            self._note(function.__module__, function.__qualname__)
            return
        self._code(code, path)
        for name in sorted(global_names(code) & known.keys()):
            self._read(name, known[name], code, path)
        for name in sorted(imported_names(code)):
            with contextlib.suppress(ImportError, ValueError):
                self._read(name, importlib.import_module(name), code, path)

    def _code(self, code: CodeType, path: str) -> None:
        self._note(code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, path)
            else:
                self.add(constant, path)

    def _object(self, thing: Any, path: str) -> None:
        """By its class and state; where it keeps no attributes, by what pickle would keep."""
        self.add(type(thing), f"type({path})")
        held = dict(getattr(thing, "__dict__", {}))
        held |= {link.key: link.part for link in of_slots(thing)}
        if held:
            for name, value in held.items():
                self._note(name)
                self.add(value, f"{path}.{name}")
            return
        try:
            kept = thing.__reduce_ex__(4)
        except Exception as error:  # locks, files, handles of simulators: whatever they raise
            raise self.refusal(thing, path) from error
        if isinstance(kept, str):
            self._note(kept)
            return
        for part in kept:
            self.add(list(part) if isinstance(part, Iterator) else part, path)


def installed(thing: Any) -> bool:
    """Whether a class, function or module comes with Python, a package, or Muninn itself."""
    own = thing if isinstance(thing, ModuleType) else None
    module = own or sys.modules.get(str(getattr(thing, "__module__", None)))
    name = getattr(module, "__name__", "__main__")
    if name.partition(".")[0] in _LIBRARIES:
        return True
    file = getattr(module, "__file__", None)
    if file is None or name == "__main__":
        return False
    path = Path(file).resolve()
    return str(path).startswith(_STANDARD) or bool({*path.parts} & _PACKAGES)


def _named(thing: Any) -> str | None:
    """The name that a user gave to an object, or None."""
    if isinstance(thing, type):
        return None
    try:
        name = getattr(thing, NAME, None)
        name = name() if callable(name) else name
    except Exception:  # an object that answers to every name, or to none
        return None
    return name if isinstance(name, str) else None


def _behind(value: Any) -> Any:
    """The functions of a property, the function of a static or class method."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, functools.cached_property):
        return value.func  # beside it, Python keeps a lock until 3.12
    return getattr(value, "__func__", value)
