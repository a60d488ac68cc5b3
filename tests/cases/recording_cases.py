"""Graphs stood in for on the CPU by what they are: operations, and the memory they work on.

Other than :mod:`graph_cases`, whose stand-in runs the function again, a replay here knows nothing
of Python: it repeats the recorded operations on the recorded tensors, as a CUDA graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import muninn.engines.graphs

WARM_UP = 2  # so that what is made anew in every run is told apart from what is made once


class Recording(TorchDispatchMode):
    """Notes every operation that computes or writes; views are memory already."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        schema = function._schema
        view = any(each.alias_info is not None for each in schema.returns)
        if schema.is_mutable or not view:
            # Memory, not tensors: one whose ``.data`` is set later is still recorded as it was.
            args, kwargs = torch.utils._pytree.tree_map_only(Tensor, _memory, (args, kwargs or {}))
            results = [] if schema.is_mutable else tree_leaves(result)
            written = [_memory(each) for each in results if isinstance(each, Tensor)]
            self.operations.append((function, args, kwargs, written))
        return result

    def replay(self) -> None:
        for function, args, kwargs, written in self.operations:
            again = function(*args, **kwargs)
            tensors = [each for each in tree_leaves(again) if isinstance(each, Tensor)]
            for old, new in zip(written, tensors, strict=bool(written)):
                old.copy_(new)


def _memory(tensor: Tensor) -> Tensor:
    return tensor.detach()


def record_instead_of_cuda(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """Has the graph engine record on the CPU; returns the list to which captures will be added."""
    made: list[Recording] = []

    def capture(
        function: Callable[[], Any], device: torch.device, pool: Any = None
    ) -> tuple[Recording, Any]:
        for _ in range(WARM_UP):
            function()
        with Recording() as graph:
            result = function()
        made.append(graph)
        return graph, result

    monkeypatch.setattr(muninn.engines.graphs, "capture", capture)
    monkeypatch.setattr(muninn.engines.graphs, "require_cuda", lambda planner: None)
    return made
