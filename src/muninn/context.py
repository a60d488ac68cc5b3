"""Batched contexts: what a planner is told about each call.

A context is None, a tensor, or a nest of dicts (or other mappings), tuples and lists of them. Every
tensor has the batch as its first dimension; anything else (strings, numbers, modules) is shared by
all rows and passed through untouched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError, MuninnError

Context = Any


def _map(change: Callable[..., Any], first: Context, *others: Context) -> Context:
    """The first nest, each tensor changed along with those in its place in nests like it."""
    if isinstance(first, Tensor):
        return change(first, *others)
    if isinstance(first, Mapping):
        changed = {key: _map(change, *(nest[key] for nest in (first, *others))) for key in first}
        return _like_mapping(first, changed)
    if isinstance(first, tuple | list):
        parts = [_map(change, *values) for values in zip(first, *others, strict=True)]
        # A named tuple takes its values one by one.
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def _like_mapping(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """The values in a mapping of the same type; in a dict where a kind of dict is not made so."""
    kind: Any = type(mapping)
    if kind is dict:
        return values
    if next(tensors(mapping), None) is None:  # settings, say, which all rows share
        return mapping
    try:
        made: Mapping[Any, Any] = kind(values)
        if list(made) == list(values) and all(made[key] is values[key] for key in values):
            return made
    except Exception:  # whatever its constructor makes of a dict
        pass
    if isinstance(mapping, dict):  # a defaultdict, say
        return values
    raise InputError(
        f"a context holds a mapping of type {kind.__qualname__}, of which some rows cannot be "
        "taken: calling the type with a dict does not give a mapping with its keys and values; "
        "pass a dict instead"
    )


def _parts(context: Context, path: str = "context") -> Iterator[tuple[str, Any]]:
    """Everything in the nest, nests themselves included, with a readable path to it."""
    yield path, context
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(context, Mapping):
        items = context.items()
    elif isinstance(context, tuple | list):
        items = enumerate(context)
    for key, value in items:
        yield from _parts(value, f"{path}[{key!r}]")


def tensors(context: Context) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the nest with a readable path to it."""
    return ((path, part) for path, part in _parts(context) if isinstance(part, Tensor))


def select(context: Context, rows: Tensor | slice) -> Context:
    """The same nest with only the given rows of every tensor."""
    if isinstance(rows, slice) and rows == slice(None):
        return context
    return _map(lambda tensor: tensor[rows], context)


def concatenate(contexts: list[Context]) -> Context:
    """One batched context from several of the same structure."""
    return _map(lambda *parts: torch.cat(parts), *contexts)


def batch_size(context: Context) -> int | None:
    """Rows of the context, None without tensors; InputError if they disagree or have no rows."""
    size: int | None = None
    first = ""
    for path, tensor in tensors(context):
        if tensor.ndim == 0:
            raise InputError(f"{path} has no batch dimension; give it shape (batch, ...)")
        if size is not None and tensor.shape[0] != size:
            raise InputError(
                f"{path} has {tensor.shape[0]} rows but {first} has {size}; "
                "every tensor of a context needs one row per call (of a single call: tensor[None])"
            )
        size, first = int(tensor.shape[0]), first or path
    if size == 0:
        raise InputError("the context is empty; give at least one call")
    return size


def copy_into(target: Context, source: Context) -> None:
    """Overwrite the first rows of a nest's tensors with those of another of its structure."""
    for (_, into), (_, value) in zip(tensors(target), tensors(source), strict=True):
        into[: len(value)].copy_(value, non_blocking=True)


def signature(context: Context) -> Hashable:
    """What a captured call depends on besides the values of tensors: structure, and the rest.

    Arrays count by content, other objects by identity: whoever keeps the signature must keep the
    context.
    """
    if isinstance(context, Tensor):
        return ("tensor", tuple(context.shape), context.dtype)
    if isinstance(context, Mapping):
        return (type(context), *((key, signature(value)) for key, value in context.items()))
    if isinstance(context, tuple | list):
        return (type(context), *(signature(value) for value in context))
    if isinstance(context, np.ndarray):
        return ("array", context.shape, str(context.dtype), context.tobytes())
    if context is None or isinstance(context, str | bytes | int | float | bool):
        return (type(context), context)
    return ("object", id(context))


def form(context: Context, path: str = "context") -> dict[str, Any]:
    """What all calls of one certificate share: structure, shapes of a row, dtypes, and the content
    of what every row is given whole, arrays and plain values.

    >>> form({"goal": torch.zeros(5, 2), "mode": "fast"})
    {"context['goal']": [[2], 'float32'], "context['mode']": "'fast'"}
    """
    found: dict[str, Any] = {}
    for place, part in _parts(context, path):
        if isinstance(part, Tensor):
            found[place] = [list(part.shape[1:]), str(part.dtype).removeprefix("torch.")]
        elif isinstance(part, Mapping | tuple | list):
            if not len(part):
                found[place] = f"empty {type(part).__qualname__}"
        elif part is None or isinstance(part, str | bytes | int | float | bool):
            found[place] = repr(part)
        elif isinstance(part, np.ndarray):
            content = hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()[:16]
            found[place] = [list(part.shape), str(part.dtype), content]
        else:
            found[place] = type(part).__qualname__
    return {} if context is None and path == "context" else found


def unlike(was: dict[str, Any], now: dict[str, Any]) -> str:
    """How the :func:`form` of a call differs from the calibrated one, and what to do about it.

    >>> unlike(form(torch.zeros(5, 2)), form(torch.zeros(2)))
    'a row of context is () float32, calibrated was (2,) float32; a single call is context[None]'
    >>> unlike(form(torch.zeros(5, 2)), form(torch.zeros(5, 2, dtype=torch.float64)))
    'a row of context is (2,) float64, calibrated was (2,) float32; convert it: .to(torch.float32)'
    >>> unlike(form({"a": torch.zeros(5, 2)}), form({"a": torch.zeros(2)})).rpartition("; ")[2]
    "a single call is context['a'][None]"
    >>> unlike(form(torch.zeros(5, 2)), form(torch.zeros(2).double())).rpartition("; ")[2]
    'a single call is context[None].to(torch.float32)'
    >>> unlike(form(torch.zeros(5, 2)), form(np.zeros((1, 2), np.float32))).rpartition("; ")[2]
    'torch.from_numpy makes a tensor of it'
    """
    places = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
    pairs: list[tuple[Any, Any]] = [(was.get(place), now.get(place)) for place in places]
    said = [
        f"a row of {place} is {_said(here)}, calibrated was {_said(there)}"
        for place, (there, here) in zip(places, pairs, strict=True)
    ]
    advice = "give contexts like those calibrated, or calibrate with these"
    if all(_is_tensor(part) for pair in pairs for part in pair):
        if all(there[0] and here[0] == there[0][1:] for there, here in pairs):
            rows = [
                f"{place}[None]{'' if there[1] == here[1] else f'.to(torch.{there[1]})'}"
                for place, (there, here) in zip(places, pairs, strict=True)
            ]
            advice = f"a single call is {', '.join(rows)}"
        elif all(there[0] == here[0] for there, here in pairs):
            dtypes = dict.fromkeys(f".to(torch.{there[1]})" for there, _ in pairs)
            advice = f"convert it: {', '.join(dtypes)}"
    elif all(_is_tensor(there) and _is_array(here) for there, here in pairs):
        advice = "torch.from_numpy makes a tensor of it"
    return f"{'; '.join(said[:3])}; {advice}"


def _is_tensor(part: Any) -> bool:
    """Whether an entry of a form is of a tensor."""
    return isinstance(part, list) and len(part) == 2


def _is_array(part: Any) -> bool:
    """Whether an entry of a form is of a numpy array."""
    return isinstance(part, list) and len(part) == 3


def _said(part: Any) -> str:
    """An entry of a form in words."""
    if _is_array(part):
        return f"a numpy array {tuple(part[0])} {part[1]}"
    if _is_tensor(part):
        return f"{tuple(part[0])} {part[1]}"
    return "missing" if part is None else str(part)


def require_rows(context: Context) -> int:
    """Rows of a context that holds one call a row.

    Raises InputError where it holds no tensor, or looks like something else: one call without a row
    dimension, a list of contexts, numpy arrays.
    """
    arrays = [each for each in _parts(context) if isinstance(each[1], np.ndarray) and each[1].ndim]
    rows = batch_size(context)
    if rows is None:
        raise InputError(
            f"{arrays[0][0]} is a numpy array; give tensors, one row per call: "
            "torch.from_numpy(array)"
            if arrays
            else f"a context is {type(context).__name__} without a tensor; give tensors "
            "(rows, ...), one row per call, or nests of them"
        )
    require_row_dimension(context)
    if isinstance(context, list) and len(context) > 1:
        forms = [form(value, "") for value in context]
        alike = bool(forms[0]) and all(each == forms[0] for each in forms)
        if alike and (isinstance(context[0], Mapping) or len(context) > rows):
            raise InputError(
                f"this is a list of {len(context)} contexts of one form; join them to one with "
                "one row per call: muninn.certify.sources.gather(contexts) (parts of one context "
                "go into a tuple or a dict)"
            )
    for path, array in arrays:
        if array.shape[0] == rows:
            raise InputError(
                f"{path} is a numpy array of {rows} rows, which every call would be given whole; "
                "give a tensor: torch.from_numpy(array)"
            )
    return rows


def require_row_dimension(context: Context, name: str = "the context") -> None:
    """Raise InputError where every tensor has one dimension: its coordinates would be calls."""
    if all(tensor.ndim == 1 for _, tensor in tensors(context)):
        single = ", ".join(f"{path}[None]" for path, _ in tensors(context))
        raise InputError(
            f"the tensors of {name} have one dimension; the first counts calls: give "
            f"{single} for one call, or (rows, 1) for calls of one number"
        )


@contextmanager
def call_explained(x: Tensor, context: Context) -> Iterator[None]:
    """Where a network fails, its error gets a note of what it was called with (Python 3.11).

    Where the context has no row dimension, an InputError says so instead: a network may take one
    number a call, (rows,), so that nothing is refused before it fails.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, MuninnError) and next(tensors(context), None) is not None:
            try:
                require_row_dimension(context)
            except InputError as explained:
                said = f"the network failed ({type(error).__name__}: {error}), and {explained}"
                raise InputError(said) from error
        note = getattr(error, "add_note", None)
        if note is not None and not isinstance(error, MuninnError):
            given = {"x": x} | dict(tensors(context))
            words = ", ".join(f"{name} {(*t.shape,)} {t.dtype}" for name, t in given.items())
            note(f"Muninn calls the network with x, timestep and context: {words}")
        raise
