"""A context on file: its structure as JSON, its numbers as arrays, large ones by their range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import MuninnError

LIMIT = 1 << 20
"""Bytes of context that a certificate keeps. Larger tensors are drawn again, within their range."""

Arrays = dict[str, Any]
"""numpy arrays by name."""


class UnstorableError(MuninnError):
    """A context holds something that no file can give back."""


def store(context: Context, arrays: Arrays, limit: int = LIMIT) -> Any:
    """JSON of a nest; its tensors are put into ``arrays``.

    Tensors that do not fit the limit, largest first, are kept as shape and range: a stand-in is
    drawn from these whenever the context is restored, and always the same one.

    Raises:
        UnstorableError: a part is neither plain, a tensor, an array, nor a dict, list or tuple.
    """
    found: list[tuple[int, dict[str, Any], Tensor]] = []
    described = _describe(context, found)
    left = limit
    for size, entry, tensor in sorted(found, key=lambda item: item[0]):
        entry["dtype"] = str(tensor.dtype).removeprefix("torch.")
        if size <= left:
            left -= size
            entry["array"] = f"context{len(arrays)}"
            arrays[entry["array"]] = _as_array(tensor)
        else:
            entry.update(shape=list(tensor.shape), range=_range(tensor))
    return described


def _describe(context: Context, found: list[tuple[int, dict[str, Any], Tensor]]) -> Any:
    kind = type(context)
    if isinstance(context, Tensor | np.ndarray):
        try:
            given = context if isinstance(context, Tensor) else torch.from_numpy(context)
        except (TypeError, ValueError) as error:
            raise UnstorableError(f"an array of {context.dtype}") from error
        tensor = given.detach().cpu()
        entry: dict[str, Any] = {"is": "tensor" if isinstance(context, Tensor) else "array"}
        found.append((tensor.numel() * tensor.element_size(), entry, tensor))
        return entry
    if context is None or kind in (bool, int, float, str):
        return {"is": "value", "value": context}
    if kind is dict and all(type(key) in (str, int) for key in context):
        return {
            "is": "dict",
            "items": [[key, _describe(value, found)] for key, value in context.items()],
        }
    if kind in (list, tuple):
        return {"is": kind.__name__, "items": [_describe(value, found) for value in context]}
    raise UnstorableError(f"a {kind.__qualname__}")


def _as_array(tensor: Tensor) -> Any:
    """numpy has no bfloat16; float32 holds its numbers exactly."""
    exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    try:
        return exact.contiguous().numpy()
    except (TypeError, RuntimeError) as error:
        raise UnstorableError(f"a tensor of {tensor.dtype}, {tensor.layout}") from error


def _range(tensor: Tensor) -> list[float]:
    if tensor.dtype == torch.bool:
        return [0, 1]
    if not tensor.is_floating_point():
        return [int(tensor.min()), int(tensor.max())]
    finite = tensor[tensor.isfinite()].double()
    return [0.0, 0.0] if not len(finite) else [float(finite.min()), float(finite.max())]


def restore(described: Any, arrays: Arrays, device: torch.device) -> Context:
    """The nest that :func:`store` described, its tensors on a device."""
    kind = described["is"]
    if kind == "value":
        return described["value"]
    if kind == "dict":
        return {key: restore(value, arrays, device) for key, value in described["items"]}
    if kind in ("list", "tuple"):
        values = [restore(value, arrays, device) for value in described["items"]]
        return values if kind == "list" else tuple(values)
    dtype = getattr(torch, described["dtype"])
    if "array" in described:
        tensor = torch.from_numpy(np.array(arrays[described["array"]])).to(dtype)
    else:
        tensor = _drawn(described["shape"], *described["range"]).to(dtype)
    return tensor.numpy() if kind == "array" else tensor.to(device)


def _drawn(shape: list[int], low: float, high: float) -> Tensor:
    """Numbers evenly spread over a range, always the same ones.

    Raw bits of a counter-based generator, whose stream numpy does not change between versions.
    """
    bits = np.random.Philox(0).random_raw(math.prod(shape)) >> np.uint64(11)
    share = torch.from_numpy(bits.astype(np.int64)).double().view(shape) / 2**53
    if isinstance(low, int) and isinstance(high, int):
        return low + (share * (high - low + 1)).floor().long()
    return low + share * (high - low)
