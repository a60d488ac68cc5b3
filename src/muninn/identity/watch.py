"""Whether a network is still what it was: for graphs that captured it, for deployed planners."""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from muninn.identity.digest import tensor_bytes
from muninn.identity.links import identified
from muninn.identity.snapshot import DEPTH, Places, Snapshot, has_memory

NUMBERS = 8  # in a row that are looked at, because torch does not count writes through ``.data``
_dtype = operator.attrgetter("dtype")

Change = Literal["code", "weights or settings"]


class Held:
    """A :class:`Snapshot` of some callables, and a hold on the memory of their tensors.

    An address that is still in use here cannot have been given to another tensor.
    """

    def __init__(self, *roots: Any, skip: Collection[Hashable] = ()) -> None:
        self._roots = roots
        self._skip = skip
        self._snapshot = self._look()
        self._held = [tensor.detach() for tensor in self._snapshot.tensors]
        self._dtypes = list(map(_dtype, self._held))

    def _look(self) -> Snapshot:
        return Snapshot(*self._roots, skip=self._skip)

    def _same_memory(self) -> bool:
        tensors = self._snapshot.tensors
        try:
            same = all(map(Tensor.is_set_to, tensors, self._held))
        except RuntimeError:  # on another device, or replaced by one that has no address
            return False
        return same and list(map(_dtype, tensors)) == self._dtypes


class Addresses(Held):
    """The memory of all tensors that some callables reach.

    Moving a network, changing its dtype, assigning to its weights or putting another in its place
    gives other addresses; changing values in place does not. Modules, hooks, arrays and callables
    count by identity, and so does train mode.

    ``rerun`` runs the callables once more. Attributes that they replace then (attention maps, say)
    are ignored: a graph writes them before it reads them.
    """

    def __init__(self, *roots: Any, rerun: Callable[[], Any] | None = None) -> None:
        skip: Places = {}
        if rerun is not None:
            before = Snapshot(*roots)
            rerun()
            skip = before.replaced()
        super().__init__(*roots, skip=skip)

    def unchanged(self) -> bool:
        """Whether every tensor is where it was; a fraction of a microsecond for each."""
        if not self._snapshot.intact():
            now, was = self._look(), self._snapshot
            if now.modes != was.modes or _captured(now) != _captured(was):
                return False
            self._snapshot = now  # a place may have changed, yet hold the same memory
        return self._same_memory()


class Watch(Held):
    """What a planner's denoiser and condition are now, to be compared with what they are later.

    Tensors are followed by where they are held, by their memory, shape and strides, by torch's
    count of writes in place and by some of their numbers; arrays by their content, large ones by
    some of it; modules by train mode, hooks and a replaced ``forward``; classes by their methods;
    everything within reach by plain settings.

    The memory of tensors is held: of a network that was moved, the old storage stays alive until
    it has been identified again. ``skip`` names places that the network rewrites by itself.
    """

    def __init__(
        self, denoiser: Any, condition: Any = None, skip: Collection[Hashable] = ()
    ) -> None:
        super().__init__(denoiser, condition, skip=skip)
        self._windows = _windows(self._held)
        self._numbers = [torch.cat(group) for group in self._windows]
        on_cuda = [each.device for each in self._numbers if each.is_cuda]
        self._stream: Any = torch.cuda.Stream(on_cuda[0]) if on_cuda else None  # type: ignore[no-untyped-call]

    def mark(self) -> Any:
        """Remember this moment on the device: what was asked of it before is to be seen."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._stream.device))
        return event

    def change(self, since: Any = None) -> Callable[[], Change | None]:
        """Look now; the function that is returned says what has changed, or None.

        On a GPU the numbers of the weights are compared there as they are after ``since`` (from
        :meth:`mark`, or now), beside whatever the device does; only the function waits for them.
        Writes through ``.data`` that leave these numbers of every weight alone are not seen.
        """
        found = self._change_here()
        if found is not None:
            return lambda: found
        if self._stream is None:
            same = bool(self._same_numbers())
            return lambda: None if same else "weights or settings"
        since = since or self.mark()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(since)
            flag = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
            flag.copy_(self._same_numbers(), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)

        def verdict() -> Change | None:
            done.synchronize()
            return None if bool(flag) else "weights or settings"

        return verdict

    def _same_numbers(self) -> Tensor:
        """Whether the numbers of all tensors are what they were, as one flag on their device."""
        pairs = zip(self._windows, self._numbers, strict=True)
        same = [(torch.cat(group) == numbers).all() for group, numbers in pairs]
        home = torch.device("cpu") if self._stream is None else self._stream.device
        flags = [flag.to(home) for flag in same] or [torch.tensor(True, device=home)]
        return torch.stack(flags).all()

    def _change_here(self) -> Change | None:
        """What the host can see."""
        if not self._snapshot.intact():
            now = self._look()
            if list(map(id, now.code)) != list(map(id, self._snapshot.code)):
                return "code"
            if not self._snapshot.same(now):
                return "weights or settings"
            self._snapshot = now
        intact = self._same_memory() and self._snapshot.unwritten()
        return None if intact else "weights or settings"

    def unidentified(self) -> str:
        """Digest of what a fingerprint leaves out: types of modules, and modules that it misses."""
        denoiser, skip = self._roots[0], self._skip
        snapshot = Snapshot(denoiser, skip=skip)
        kinds = nn.Module | nn.Parameter | np.ndarray  # a network may make others in every call
        types = [type(part).__qualname__ for part in snapshot.objects if isinstance(part, kinds)]
        state = hashlib.sha256(f"{types}{snapshot.modes}".encode())
        deeper = [part for _, part in identified(denoiser, skip, depth=DEPTH)]
        missed = _memory([*deeper, *snapshot.modules])
        missed -= _memory(part for _, part in identified(denoiser))
        for tensor in snapshot.tensors:
            if tensor.data_ptr() in missed:
                state.update(tensor_bytes(tensor)[0])
        return state.hexdigest()


def in_train_mode(denoiser: Any) -> str | None:
    """The type of a module in train mode that a denoiser reaches, or None."""
    dropouts = nn.modules.dropout._DropoutNd
    for module in filter(operator.attrgetter("training"), Snapshot(denoiser).modules):
        # Activations may be: libraries keep them as globals, in train mode since they were made.
        weights = [*module.parameters(), *module.buffers()]
        if weights or any(isinstance(part, dropouts) for part in module.modules()):
            return type(module).__qualname__
    return None


def reaches(denoiser: Any, module: nn.Module) -> bool:
    """Whether a denoiser computes with a module."""
    return any(part is module for part in Snapshot(denoiser).modules)


def _memory(parts: Iterable[Any]) -> set[int]:
    """Addresses of tensors, and of the weights of modules."""
    states = [
        part.state_dict().values() if isinstance(part, nn.Module) else [part] for part in parts
    ]
    tensors = [value for state in states for value in state if isinstance(value, Tensor)]
    return {tensor.data_ptr() for tensor in tensors if has_memory(tensor)}


def _captured(snapshot: Snapshot) -> list[int]:
    """Identities of what a captured call runs or reads; plain settings are no part of it."""
    counted = [
        part for part in snapshot.objects if callable(part) or isinstance(part, Tensor | np.ndarray)
    ]
    return [id(part) for part in (*snapshot.code, *counted)]


def _windows(held: list[Tensor]) -> list[list[Tensor]]:
    """Some numbers of every tensor, as bytes (NaN equals itself then), by device.

    They are neighbours in its middle, which torch copies together; of a tensor made in inference
    mode, whose writes torch does not count, there are more, from the first to the last.
    """
    groups: dict[Any, list[Tensor]] = {}
    for tensor in held:
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((length - 1) * stride for length, stride in sizes)
        first, last = tensor.storage_offset(), max(0, span - NUMBERS)
        places = sorted({last * run // 15 for run in range(16)})
        places = places if tensor.is_inference() else [last // 2]
        with contextlib.suppress(RuntimeError):  # of a kind without plain numbers
            groups.setdefault(tensor.device, []).extend(
                tensor.as_strided((min(span, NUMBERS),), (1,), first + place).view(torch.uint8)
                for place in places
            )
    return list(groups.values())
