"""Graphs stood in for on the CPU, for tests of what the engine does around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import muninn.engines.graphs


class Replayed:
    """Stands for a graph on the CPU: runs its function again and overwrites the first result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result = function()

    def replay(self) -> None:
        again = self.function()
        if isinstance(self.result, Tensor):
            self.result.copy_(again)
        elif self.result is not None:
            self.result.after.copy_(again.after)
            self.result.packed.copy_(again.packed)


def stand_in_for_cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Has the graph engine run on the CPU; returns the list to which captures will be added."""
    made: list[Any] = []

    def capture(
        function: Callable[[], Any], device: torch.device, pool: Any = None
    ) -> tuple[Replayed, Any]:
        graph = Replayed(function)
        made.append(graph)
        return graph, graph.result

    monkeypatch.setattr(muninn.engines.graphs, "capture", capture)
    monkeypatch.setattr(muninn.engines.graphs, "require_cuda", lambda planner: None)
    return made
