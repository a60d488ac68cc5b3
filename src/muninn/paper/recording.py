"""Recorded calls of submodules: what one returned and wrote, and the same answer again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from muninn.context import tensors
from muninn.errors import DenoiserError, InputError

Forward = Callable[..., Any]
StandIn = Callable[..., Any]
"""``stand_in(module, its own forward, /, *args, **kwargs)`` answers instead of the forward."""


@dataclass(frozen=True)
class Kept:
    """A tensor of an output: its value, and which input it was handed through from, if any."""

    value: Tensor
    given: int | None


@dataclass(frozen=True)
class Recorded:
    """One finished call of a submodule, with a batch of some rows."""

    module: nn.Module
    name: str
    batch: int
    shapes: tuple[torch.Size, ...]  # of its input tensors, in order
    written: dict[int, Tensor]  # values after the call of the inputs it wrote into, by position
    output: Any  # what it returned, with a copy of each tensor in a Kept
    view: bool  # it only gave its inputs another shape

    def answer(
        self, original: Forward, rows: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the submodule returned, for the given rows (all of them, in order, if None).

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
            if shape[:1] != (self.batch,) or tensor.shape != (len(rows), *shape[1:]):
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
) -> tuple[Recorded, Any]:
    """Call a submodule; return what was recorded, and its live output."""
    given = [tensor for _, tensor in tensors((args, kwargs))]
    shapes = tuple(tensor.shape for tensor in given)
    # torch counts writes into a tensor, but not under inference_mode: there the value must serve.
    before = [tensor.clone() if tensor.is_inference() else tensor._version for tensor in given]
    output = original(*args, **kwargs)
    written = {
        position: tensor.clone()
        for position, (tensor, mark) in enumerate(zip(given, before, strict=True))
        if (tensor._version != mark if isinstance(mark, int) else not torch.equal(tensor, mark))
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
    return Recorded(module, name, batch, shapes, written, copied, view), output


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of the same kind with each leaf changed; keeps subclasses and dataclasses."""
    if isinstance(value, dict):
        twin: Any = copy.copy(value)
        for key, part in value.items():
            twin[key] = rebuilt(part, change)
        return twin
    if isinstance(value, tuple | list):
        parts = [rebuilt(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Kept):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, rebuilt(getattr(value, field.name), change))
        return twin
    return change(value)


@contextmanager
def replaced(modules: Iterable[nn.Module], stand_in: StandIn) -> Iterator[ExitStack]:
    """Replace ``forward`` on module instances; leaving, or closing what it yields, puts it back."""
    with ExitStack() as undo:
        for module in modules:
            own, original = module.__dict__, module.forward
            if "forward" in own:
                undo.callback(own.__setitem__, "forward", original)
            else:
                undo.callback(own.pop, "forward", None)
            own["forward"] = update_wrapper(partial(stand_in, module, original), original)
        yield undo
