"""Batched contexts: what a planner is told about each call.

A context is None, a tensor, or a nest of dicts (or other mappings), tuples and lists of them. Every
tensor has the batch as its first dimension; anything else (strings, numbers, modules) is shared by
all rows and passed through untouched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError

Context = Any


def _map(context: Context, change: Callable[[Tensor], Any]) -> Context:
    if isinstance(context, Tensor):
        return change(context)
    if isinstance(context, Mapping):
        changed = {key: _map(value, change) for key, value in context.items()}
        return _like_mapping(context, changed)
    if isinstance(context, tuple | list):
        return _like(context, [_map(value, change) for value in context])
    return context


def _like_mapping(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """The values in a mapping of the same type; in a dict where a kind of dict is not made so.

    Raises:
        InputError: the mapping holds tensors, and one of its type cannot be made from a dict.
    """
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


def _like(sequence: Any, values: list[Any]) -> Any:
    """The values in a sequence of the same type; a named tuple takes them one by one."""
    kind = type(sequence)
    return kind(*values) if hasattr(sequence, "_fields") else kind(values)


def tensors(context: Context) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the nest with a readable path to it."""
    return _leaves(context, Tensor)


def _leaves(context: Context, kind: type, path: str = "context") -> Iterator[tuple[str, Any]]:
    """Every part of one kind with a readable path to it."""
    if isinstance(context, kind):
        yield path, context
    elif isinstance(context, Mapping):
        for key, value in context.items():
            yield from _leaves(value, kind, f"{path}[{key!r}]")
    elif isinstance(context, tuple | list):
        for position, value in enumerate(context):
            yield from _leaves(value, kind, f"{path}[{position}]")


def select(context: Context, rows: Tensor | slice) -> Context:
    """The same nest with only the given rows of every tensor."""
    if isinstance(rows, slice) and rows == slice(None):
        return context
    return _map(context, lambda tensor: tensor[rows])


def concatenate(contexts: list[Context]) -> Context:
    """One batched context from several of the same structure."""
    first = contexts[0]
    if isinstance(first, Tensor):
        return torch.cat(contexts)
    if isinstance(first, Mapping):
        joined = {key: concatenate([context[key] for context in contexts]) for key in first}
        return _like_mapping(first, joined)
    if isinstance(first, tuple | list):
        return _like(first, [concatenate(list(parts)) for parts in zip(*contexts, strict=True)])
    return first


def batch_size(context: Context) -> int | None:
    """Rows of the context, or None if it holds no tensor.

    Raises:
        InputError: if tensors disagree, are 0-dimensional, or hold no row.
    """
    size: int | None = None
    first = ""
    for path, tensor in tensors(context):
        if tensor.ndim == 0:
            raise InputError(f"{path} has no batch dimension; give it shape (batch, ...)")
        if size is not None and tensor.shape[0] != size:
            raise InputError(
                f"{path} has {tensor.shape[0]} rows but {first} has {size}; "
                "every tensor of a context needs one row per call"
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
    if isinstance(context, Tensor):
        return {path: [list(context.shape[1:]), str(context.dtype).removeprefix("torch.")]}
    if isinstance(context, Mapping):
        parts = [form(value, f"{path}[{key!r}]") for key, value in context.items()]
    elif isinstance(context, tuple | list):
        parts = [form(value, f"{path}[{place}]") for place, value in enumerate(context)]
    elif context is None and path == "context":
        parts = []
    elif context is None or isinstance(context, str | bytes | int | float | bool):
        return {path: repr(context)}
    elif isinstance(context, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(context).tobytes()).hexdigest()[:16]
        return {path: [list(context.shape), str(context.dtype), content]}
    else:
        return {path: type(context).__qualname__}
    if not parts and context is not None:
        return {path: f"empty {type(context).__qualname__}"}
    return {name: value for part in parts for name, value in part.items()}


def require_rows(context: Context) -> int:
    """Rows of a context that holds one call a row.

    Raises:
        InputError: it holds no tensor, or looks like something else: one call without a row
            dimension, a list of contexts, numpy arrays.
    """
    arrays = [(path, array) for path, array in _leaves(context, np.ndarray) if array.ndim]
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
        raise InputError(
            f"the tensors of {name} have one dimension; the first counts calls: give "
            "context[None] for one call, or (rows, 1) for calls of one number"
        )
