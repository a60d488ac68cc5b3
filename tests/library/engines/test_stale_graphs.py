"""Whatever replaces what a captured call computes with, the next call plans with what is there.

Graphs are recordings of operations on memory here, so that a stale one gives a stale plan.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muninn.engines.choose import runtime_for
from muninn.engines.runtime import Runtime
from muninn.model.planner import Planner
from recording_cases import record_instead_of_cuda
from replacing_cases import CHANGES, Around, Change, Wrapper, network
from runtime_cases import SHAPE, programs, samplers

SAMPLER = samplers()["ddim"]
PROGRAM = programs(SAMPLER)["static"]


def require_followed(made: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = record_instead_of_cuda(monkeypatch)
    planner = Planner(made.denoiser, SAMPLER, SHAPE, condition=made.condition, engine="graph")
    graph, eager = runtime_for(planner, PROGRAM), Runtime(planner, PROGRAM)
    noise = planner.draw_noise(seeds=[1])
    before, _ = eager(noise=noise)
    for _ in range(2):
        found, record = graph(noise=noise)
        torch.testing.assert_close(found, before)
        assert record.fallbacks == 0
    assert len(captures) == 1
    made.change()
    expected, _ = eager(noise=noise)
    assert not torch.allclose(expected, before, atol=1e-3)
    for _ in range(2):
        found, record = graph(noise=noise)
        torch.testing.assert_close(found, expected)
        assert record.fallbacks == 0
    assert len(captures) == 2


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_replaced_is_followed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_followed(CHANGES[name](), monkeypatch)


@pytest.mark.parametrize("wrappers", range(1, 7))
def test_behind_wrappers_as_far_as_certificates_look_and_further(
    wrappers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = network()
    denoiser: Any = Wrapper(layers)
    for _ in range(wrappers):
        denoiser = Around(denoiser)
    other = network(1).state_dict()
    change = lambda: layers.load_state_dict(other, assign=True)  # noqa: E731
    require_followed(Change(denoiser, change), monkeypatch)


def test_a_stale_recording_would_be_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in reads memory: other weights are not seen, values written in place are."""
    layers = network()
    monkeypatch.setattr("muninn.engines.shapes.Addresses.unchanged", lambda _: True)
    record_instead_of_cuda(monkeypatch)
    planner = Planner(Wrapper(layers), SAMPLER, SHAPE, engine="graph")
    graph = runtime_for(planner, PROGRAM)
    noise = planner.draw_noise(seeds=[1])
    before, _ = graph(noise=noise)
    layers.load_state_dict(network(1).state_dict(), assign=True)
    assert torch.equal(graph(noise=noise)[0], before)
    layers = network()
    planner = Planner(Wrapper(layers), SAMPLER, SHAPE, engine="graph")
    graph = runtime_for(planner, PROGRAM)
    graph(noise=noise)
    layers.load_state_dict(network(1).state_dict())
    expected, _ = Runtime(planner, PROGRAM)(noise=noise)
    torch.testing.assert_close(graph(noise=noise)[0], expected)


class Growing(nn.Module):
    """Has a table that is made longer when a longer context comes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.table = torch.ones(1)
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        length = context.shape[1]
        if len(self.table) < length:
            self.table = torch.linspace(0.0, 1.0, length)
        shift = (self.table[:length] * context).sum(1, keepdim=True)
        found: Tensor = self.layers(x.flatten(1)) + shift
        return found.view_as(x)


def test_a_table_that_grows_has_shorter_contexts_captured_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captures = record_instead_of_cuda(monkeypatch)
    planner = Planner(Growing(), SAMPLER, SHAPE, engine="graph")
    graph = runtime_for(planner, PROGRAM)
    noise, made = planner.draw_noise(seeds=[1]), []
    for length in (4, 9, 4, 9, 4):
        context = torch.ones(1, length)
        found, _ = graph(context, noise=noise)
        expected, _ = Runtime(planner, PROGRAM)(context, noise=noise)
        torch.testing.assert_close(found, expected)
        made.append(len(captures))
    assert made == [1, 2, 3, 3, 3]


class Remembering(nn.Module):
    """Keeps what it computed last, as networks do that are looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.last: Tensor | None = None
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layers(x)
        return self.last


def test_what_a_network_keeps_of_its_calls_has_nothing_captured_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captures = record_instead_of_cuda(monkeypatch)
    planner = Planner(Wrapper(Remembering()), SAMPLER, SHAPE, engine="graph")
    graph = runtime_for(planner, PROGRAM)
    for _ in range(3):
        for rows in (1, 2):
            noise = planner.draw_noise(seeds=range(rows))
            expected, _ = Runtime(planner, PROGRAM)(noise=noise)
            torch.testing.assert_close(graph(noise=noise)[0], expected)
    assert len(captures) == 2
