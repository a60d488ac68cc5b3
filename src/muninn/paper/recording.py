"""Recorded calls of submodules: what a call returned and wrote, and the same answer again.

The parts of :mod:`muninn.paper.named_split` that know about one call only.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from muninn.context import tensors
from muninn.errors import DenoiserError, InputError

Forward = Callable[..., Any]
_ABSENT = object()


@dataclass(frozen=True)
class Kept:
    """A tensor of an output: its value, and which input it was handed through from, if any."""

    value: Tensor
    given: int | None


@dataclass(frozen=True)
class Call:
    """One finished call of a submodule.

    Attributes:
        module: the submodule.
        name: its dotted name.
        batch: rows it was recorded with.
        shapes: of its input tensors, in order.
        written: values after the call of the inputs it wrote into, by position.
        output: what it returned, with a copy of each tensor in a :class:`Kept`.
        view: whether it only gave its inputs another shape.
    """

    module: nn.Module
    name: str
    batch: int
    shapes: tuple[torch.Size, ...]
    written: dict[int, Tensor]
    output: Any
    view: bool

    def answer(
        self, original: Forward, rows: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the call returned, for the given rows (all of them, in order, if None).

        Writes into inputs are repeated, and an input that was handed through is handed through, so
        that in-place work of the surrounding code goes where it went.
        """
        given = [tensor for _, tensor in tensors((args, kwargs))]
        shrunk = self._shrunk(given, rows)
        if self.view:  # only the same views keep later writes in step, and they cost nothing
            return original(*args, **kwargs)
        for position, value in self.written.items():
            given[position].copy_(value[rows] if shrunk[position] else value)

        def handed_out(leaf: Any) -> Any:
            if not isinstance(leaf, Kept):
                return leaf
            if leaf.given is not None:
                return given[leaf.given]
            if not any(shrunk) or leaf.value.ndim == 0:
                return leaf.value.clone()
            if len(leaf.value) != self.batch:
                raise self._not_first("output", leaf.value.shape)
            return leaf.value[rows]

        return rebuilt(self.output, handed_out)

    def _shrunk(self, given: list[Tensor], rows: Tensor | None) -> list[bool]:
        """Whether each input now has the given rows only, instead of the whole batch."""
        if len(given) != len(self.shapes):
            raise self.astray()
        shrunk = [tensor.shape != shape for tensor, shape in zip(given, self.shapes, strict=True)]
        for tensor, shape, differs in zip(given, self.shapes, shrunk, strict=True):
            if not differs:
                continue
            if rows is None:
                raise self.astray()
            if not shape or shape[0] != self.batch or tensor.shape != (len(rows), *shape[1:]):
                raise self._not_first("input", shape)
        return shrunk

    def _not_first(self, what: str, shape: torch.Size) -> InputError:
        return InputError(
            f"an {what} of submodule {self.name!r} has shape {tuple(shape)} in a batch of "
            f"{self.batch}, so its rows cannot be taken apart; the batch must be the first "
            "dimension up to the probe. Name an earlier submodule, or recompute whole batches"
        )

    def astray(self) -> DenoiserError:
        """The error for a denoiser that does not repeat this call."""
        return DenoiserError(
            f"the denoiser did not call submodule {self.name!r} as it did in the stem; up to the "
            "probe its path must depend on neither values, rows nor earlier calls"
        )


def record(
    module: nn.Module,
    name: str,
    batch: int,
    original: Forward,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Call, Any]:
    """Make a call; return it for later, and its live output."""
    given = [tensor for _, tensor in tensors((args, kwargs))]
    shapes, marks = tuple(tensor.shape for tensor in given), [_mark(tensor) for tensor in given]
    output = original(*args, **kwargs)
    written = {
        position: tensor.clone()
        for position, tensor in enumerate(given)
        if _was_written(tensor, marks[position])
    }
    positions = {id(tensor): position for position, tensor in enumerate(given)}
    own = {tensor.untyped_storage().data_ptr() for tensor in given}
    made: list[bool] = []  # for each tensor that is not an input itself: does it view one?

    def kept(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        position = positions.get(id(leaf))
        if position is None:
            made.append(leaf.untyped_storage().data_ptr() in own)
        return Kept(leaf.clone(), position)

    copied = rebuilt(output, kept)
    view = bool(made) and all(made) and not written
    return Call(module, name, batch, shapes, written, copied, view), output


def _mark(tensor: Tensor) -> int | Tensor:
    """What tells later whether a tensor was written into: torch's count of writes, if it counts.

    It does not under ``torch.inference_mode``; there the value itself must serve.
    """
    return tensor.clone() if tensor.is_inference() else tensor._version


def _was_written(tensor: Tensor, mark: int | Tensor) -> bool:
    if isinstance(mark, Tensor):
        return not torch.equal(tensor, mark)
    return tensor._version != mark


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of the same kind with each leaf changed; keeps subclasses and dataclasses."""
    if isinstance(value, Kept):
        return change(value)
    twin: Any
    if isinstance(value, dict):
        twin = copy.copy(value)
        for key, part in value.items():
            twin[key] = rebuilt(part, change)
        return twin
    if isinstance(value, tuple | list):
        parts = [rebuilt(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, rebuilt(getattr(value, field.name), change))
        return twin
    return change(value)


def leaves(value: Any) -> list[Any]:
    """The leaves of a nest, in order."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    rebuilt(value, note)
    return found


def require_eager(denoiser: Any, module: Any) -> None:
    """Refuse what does not call its submodules through ``forward`` in this process and thread.

    Raises:
        InputError: a part is compiled, scripted or data-parallel, or module is no module.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    compiled = "_torchdynamo_orig_callable"
    parts = {
        f"submodule {name!r}" if name else "module": part for name, part in module.named_modules()
    }
    for name, part in {**parts, "denoiser": denoiser}.items():
        kind = None
        if isinstance(part, torch.jit.ScriptModule):
            kind = "scripted"
        elif isinstance(part, nn.DataParallel):
            kind = "data-parallel"
        elif (
            hasattr(part, compiled)
            or hasattr(getattr(part, "forward", None), compiled)
            or getattr(part, "_compiled_call_impl", None) is not None
        ):
            kind = "compiled"
        if kind:
            raise InputError(
                f"{name} is {kind}, so calls in it cannot be recorded; give the plain network, and "
                "a denoiser that calls that"
            )


class Replacement:
    """``forward`` of modules replaced on the instances, and put back on leaving."""

    def __init__(self) -> None:
        self._saved: dict[nn.Module, Any] = {}

    def put(self, module: nn.Module, make: Callable[[nn.Module, Forward], Forward]) -> None:
        """Replace the module's forward by ``make(module, its present forward)``."""
        original = module.forward
        forward = make(module, original)
        forward.__wrapped__ = original  # type: ignore[attr-defined]  # inspect.signature reads it
        self._saved[module] = module.__dict__.get("forward", _ABSENT)
        module.__dict__["forward"] = forward

    def undo(self) -> None:
        """Leave every module as it was."""
        while self._saved:
            module, before = self._saved.popitem()
            if before is _ABSENT:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()
