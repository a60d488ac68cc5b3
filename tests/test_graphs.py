"""The graph engine: what it does around a capture is tested here, captures on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import muninn.graphs
from analytic import mixture_planner
from muninn.errors import InputError
from muninn.forecast import Forecast
from muninn.graphs import MOST_SHAPES, GraphRuntime, RoundGraphRuntime
from muninn.plan import Everywhere, Program
from muninn.planner import Planner
from muninn.runtime import Runtime
from runtime_cases import contexts, gate, pin_start, programs, samplers

FIXED = [name for name in programs(samplers()["ddim"]) if name.startswith("static")]


class Replayed:
    """Stands for a graph on the CPU: runs its function again and overwrites the first result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result = function()

    def replay(self) -> None:
        again = self.function()
        if self.result is not None:
            self.result.after.copy_(again.after)
            self.result.packed.copy_(again.packed)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def capture(function: Callable[[], Any], device: torch.device) -> tuple[Replayed, Any]:
        graph = Replayed(function)
        made.append(graph)
        return graph, graph.result

    monkeypatch.setattr(muninn.graphs, "capture", capture)
    monkeypatch.setattr(muninn.graphs, "require_cuda", lambda planner: None)
    return made


def planner_for(name: str = "ddim") -> Planner:
    return replace(mixture_planner(samplers()[name]), condition=pin_start)


@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("name", ["ddim", "ddpm", "euler"])
def test_a_replayed_call_is_the_eager_call(captures: list[Any], name: str, kind: str) -> None:
    planner = planner_for(name)
    program = programs(planner.sampler)[kind]
    graph, eager = GraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):  # the second call replays what the first captured
        noise = planner.draw_noise(seeds=range(first, first + 3))
        found, record = graph(contexts(3), noise=noise)
        expected, reference = eager(contexts(3), noise=noise)
        assert torch.equal(found, expected)
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert np.array_equal(record.charged, reference.charged)  # type: ignore[arg-type]
    assert len(captures) == 1


def test_shapes_are_captured_once_each_and_the_oldest_forgotten(captures: list[Any]) -> None:
    planner = planner_for()
    runtime = GraphRuntime(planner, Program(Forecast("sample", 0, False), Everywhere()))
    for rows in (1, 2, 1, 2, 1):
        runtime(contexts(rows), noise=planner.draw_noise(rows))
    assert [len(made.result.after) for made in captures] == [1, 2]
    for rows in range(3, 3 + MOST_SHAPES):
        runtime(contexts(rows), noise=planner.draw_noise(rows))
    runtime(contexts(1), noise=planner.draw_noise(1))
    assert [len(made.result.after) for made in captures].count(1) == 2


def test_what_cannot_be_captured_runs_eagerly(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(muninn.graphs, "capture", refuse)
    planner = planner_for()
    program = programs(planner.sampler)["static"]
    noise = planner.draw_noise(2)
    found, _ = GraphRuntime(planner, program)(contexts(2), noise=noise)
    assert torch.equal(found, Runtime(planner, program)(contexts(2), noise=noise)[0])


def test_results_are_the_callers_own(captures: list[Any]) -> None:
    planner = planner_for()
    runtime = GraphRuntime(planner, programs(planner.sampler)["static"])
    noise = planner.draw_noise(seeds=[1])
    first, _ = runtime(contexts(1), noise=noise)
    kept = first.clone()
    first.fill_(7.0)
    again, _ = runtime(contexts(1), noise=noise)
    assert torch.equal(again, kept)


@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddim", "ddpm", "stochastic ddim", "euler"])
def test_replayed_rounds_are_the_eager_call(captures: list[Any], name: str, kind: str) -> None:
    planner = planner_for(name)
    program = programs(planner.sampler)[kind]
    graph, eager = RoundGraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 6))
        found, record = graph(contexts(6), noise=noise)
        expected, reference = eager(contexts(6), noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert record.estimate == pytest.approx(reference.estimate, rel=1e-3, abs=1e-6)
    assert len(captures) == 4  # rounds of 1, 2, 4 and 6 rows


def test_bad_input_is_refused(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_for()
    with pytest.raises(InputError, match="decides on the way"):
        GraphRuntime(planner, gate(planner.sampler))
    monkeypatch.undo()
    for engine in (GraphRuntime, RoundGraphRuntime):
        with pytest.raises(InputError, match="CUDA"):
            engine(planner, programs(planner.sampler)["static"])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "ddpm", "euler"])
def test_a_cuda_graph_is_the_eager_call(name: str, kind: str) -> None:
    device = torch.device("cuda")
    planner = replace(planner_for(name), device=device)
    program = programs(planner.sampler)[kind]
    graph, eager = GraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 3))
        found, record = graph(contexts(3).to(device), noise=noise)
        expected, reference = eager(contexts(3).to(device), noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        assert np.array_equal(record.evaluated, reference.evaluated)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "ddpm", "euler"])
def test_rounds_in_cuda_graphs_are_the_eager_call(name: str, kind: str) -> None:
    device = torch.device("cuda")
    planner = replace(planner_for(name), device=device)
    program = programs(planner.sampler)[kind]
    graph, eager = RoundGraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 6))
        found, record = graph(contexts(6).to(device), noise=noise)
        expected, reference = eager(contexts(6).to(device), noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
        assert np.array_equal(record.evaluated, reference.evaluated)
