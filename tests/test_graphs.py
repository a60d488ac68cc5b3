"""The graph engine: what it does around a capture is tested here, captures on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
import muninn.graphs
from analytic import mixture_planner
from muninn.engines import runtime_for
from muninn.errors import CertificateError, DenoiserError, InputError
from muninn.forecast import Forecast
from muninn.graphs import MOST_SHAPES, GraphRuntime, RoundGraphRuntime
from muninn.plan import Everywhere, Family, Program, Static
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
        context = contexts(3) + 0.1 * first  # other values: they must reach the captured call
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
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


@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_what_cannot_be_captured_is_planned_in_full(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The eager program is not the one that was certified: full compute is."""
    asked = 0

    def refuse(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(muninn.graphs, "capture", refuse)
    planner = replace(planner_for(), engine="graph")
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(2)
    runtime = runtime_for(planner, program)
    for _ in range(2):
        found, record = runtime(contexts(2), noise=noise)
        assert torch.equal(found, planner.sample(contexts(2), noise=noise))
        assert record.fallbacks == 2
        assert "engine='eager'" in str(record.fallback[0])
    assert asked == 1  # found out once per shape
    with pytest.raises(DenoiserError, match="not permitted"):
        runtime_for(planner, program, on_failure="error")(contexts(2), noise=noise)


def test_a_planner_names_its_engine(captures: list[Any]) -> None:
    eager, graph = planner_for(), replace(planner_for(), engine="graph")
    static, adaptive = (programs(eager.sampler)[kind] for kind in ("static", "adaptive"))
    assert type(runtime_for(eager, static)) is Runtime
    assert type(runtime_for(graph, static)) is GraphRuntime
    assert type(runtime_for(graph, adaptive)) is RoundGraphRuntime
    assert "engine" not in eager.identity()
    assert graph.identity() == {**eager.identity(), "engine": "graph"}
    with pytest.raises(InputError, match="engine is one of"):
        replace(eager, engine="magic")  # type: ignore[arg-type]


def test_a_certificate_holds_for_its_engine(captures: list[Any]) -> None:
    graph = replace(planner_for(), engine="graph")
    family = Family(Forecast("sample", 1), (Everywhere(), Static((0, 1, 2, 5, 9, 14, 19, 24))), "x")
    certificate = muninn.calibrate(
        graph, contexts(90), tolerance=0.5, family=family, progress=False
    )
    assert captures  # certified on what will be deployed
    found, _ = muninn.cache(graph, certificate)(contexts(2))
    assert found.shape == (2, *graph.shape)
    with pytest.raises(CertificateError, match="engine"):
        muninn.cache(planner_for(), certificate)


def test_what_is_not_a_tensor_is_part_of_what_was_captured(captures: list[Any]) -> None:
    planner = planner_for()

    def shifted(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        shift = float(context["table"][-1]) + context["gain"] + context["module"].shift
        return 0.1 * x + shift + 0.0 * context["tensor"].mean()

    class Module:
        def __init__(self, shift: float) -> None:
            self.shift = shift

    planner = Planner(shifted, planner.sampler, planner.shape)
    runtime = GraphRuntime(planner, programs(planner.sampler)["static"])
    table, other = np.zeros(5000), np.zeros(5000)
    other[-1] = 1.0
    noise, base = planner.draw_noise(seeds=[1]), Module(0.0)
    first = {"table": table, "gain": 0.0, "module": base, "tensor": torch.zeros(1, 1)}
    for change in ({}, {"table": other}, {"gain": 1.0}, {"module": Module(1.0)}):
        context = {**first, **change}
        found, _ = runtime(context, noise=noise)
        expected, _ = Runtime(planner, programs(planner.sampler)["static"])(context, noise=noise)
        assert torch.equal(found, expected)
    assert len(captures) == 4
    runtime({**first, "table": np.zeros(5000)}, noise=noise)
    assert len(captures) == 4  # equal content is not captured again


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
        context = contexts(6) + 0.1 * first
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
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
        context = (contexts(3) + 0.1 * first).to(device)
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
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
        context = (contexts(6) + 0.1 * first).to(device)
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
        assert np.array_equal(record.evaluated, reference.evaluated)
