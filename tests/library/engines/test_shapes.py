"""What happens when a call cannot be captured now: full compute, and another try."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import muninn.engines.graphs
from analytic import mixture_planner
from graph_cases import stand_in_for_cuda
from muninn.engines.choose import runtime_for
from muninn.engines.shapes import TRIES
from muninn.errors import DenoiserError
from muninn.model.planner import Planner
from runtime_cases import SHAPE, contexts, programs, samplers

KINDS = ["static", "adaptive"]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return stand_in_for_cuda(monkeypatch)


def graph_planner() -> Planner:
    return replace(mixture_planner(samplers()["ddim"]), engine="graph")


def failing(monkeypatch: pytest.MonkeyPatch, errors: Iterator[BaseException | None]) -> None:
    """Has captures raise one error after the other; None lets one succeed."""
    works = muninn.engines.graphs.capture

    def capture(*arguments: Any) -> Any:
        error = next(errors, None)
        if error is not None:
            raise error
        return works(*arguments)

    monkeypatch.setattr(muninn.engines.graphs, "capture", capture)


@pytest.mark.parametrize("kind", KINDS)
def test_without_memory_for_a_graph_the_call_is_planned_in_full_and_the_next_tries(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    calls = 2 * TRIES  # more than other failures are forgiven
    errors = (torch.OutOfMemoryError(f"tried to allocate {call} MiB") for call in range(calls))
    failing(monkeypatch, errors)
    planner = graph_planner()
    noise = planner.draw_noise(seeds=[1, 2])
    runtime = runtime_for(planner, programs(planner.sampler)[kind])
    reasons = set()
    for _ in range(calls):
        found, record = runtime(contexts(2), noise=noise)
        assert torch.equal(found, planner.sample(contexts(2), noise=noise))
        reasons.update(record.fallback)
    assert len(reasons) == 1  # logged once
    assert "too little memory" in str(reasons.pop())
    assert runtime(contexts(2), noise=noise)[1].fallbacks == 0


def test_without_memory_for_a_graph_it_says_so(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, iter([torch.OutOfMemoryError("no room"), None]))
    planner = graph_planner()
    program = programs(planner.sampler)["static"]
    runtime = runtime_for(planner, program, on_failure="error")
    with pytest.raises(DenoiserError, match="too little memory") as caught:
        runtime(contexts(1))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert runtime(contexts(1))[1].fallbacks == 0


def test_full_compute_finds_the_memory_that_the_capture_had_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing holds the error, and through it the frames and tensors of what failed."""
    stand_in_for_cuda(monkeypatch)
    taken: list[weakref.ref[Tensor]] = []
    in_full: list[bool] = []

    def capture(function: Any, *_: Any) -> Any:
        activations = torch.zeros(8)
        taken.append(weakref.ref(activations))
        function()
        raise torch.OutOfMemoryError("no room")

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        in_full.append(bool(taken) and taken[0]() is None)
        return 0.1 * x

    monkeypatch.setattr(muninn.engines.graphs, "capture", capture)
    planner = Planner(denoise, samplers()["ddim"], SHAPE, engine="graph")
    runtime = runtime_for(planner, programs(planner.sampler)["static"])
    gc.disable()
    try:
        assert runtime(noise=planner.draw_noise(1))[1].fallbacks == 1
    finally:
        gc.enable()
    assert in_full[-len(planner.sampler) :] == [True] * len(planner.sampler)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_that_passes_is_not_for_good(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    failing(monkeypatch, iter([RuntimeError("would make the legacy stream depend")] * (TRIES - 1)))
    planner = graph_planner()
    runtime = runtime_for(planner, programs(planner.sampler)[kind])
    fallbacks = [runtime(contexts(1))[1].fallbacks for _ in range(TRIES + 1)]
    assert fallbacks == [1] * (TRIES - 1) + [0, 0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exceptions_of_the_network_are_passed_on(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    failing(monkeypatch, (error("from within") for _ in range(TRIES + 1)))
    planner = graph_planner()
    runtime = runtime_for(planner, programs(planner.sampler)["static"])
    for _ in range(TRIES + 1):
        with pytest.raises(error, match="from within"):
            runtime(contexts(1))
    assert runtime(contexts(1))[1].fallbacks == 0
