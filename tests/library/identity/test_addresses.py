"""A graph reads weights by address: whatever gives them another one is noticed.

What may replace weights, and what becomes of plans then, is in test_stale_graphs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muninn.identity.watch import Addresses
from muninn.model.denoiser import ClassifierFreeGuidance


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False)).eval()


def assign(layers: nn.Module) -> None:
    layers.load_state_dict(network().state_dict(), assign=True)


def set_data(layers: nn.Sequential) -> None:
    layers[2].weight.data = torch.zeros(2, 3)


def replace_parameter(layers: nn.Sequential) -> None:
    layers[0].bias = nn.Parameter(torch.zeros(3))


def replace_buffer(layers: nn.Sequential) -> None:
    layers[1].running_mean = torch.ones(3)


def replace_module(layers: nn.Sequential) -> None:
    layers[0] = nn.Linear(2, 3)


def remove(layers: nn.Sequential) -> None:
    layers[0].bias = None


MOVES: list[Callable[[Any], Any]] = [
    nn.Module.half,
    nn.Module.double,
    assign,
    set_data,
    replace_parameter,
    replace_buffer,
    replace_module,
    remove,
]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_weights_that_moved_are_noticed(move: Callable[[Any], Any]) -> None:
    layers = network()
    addresses = Addresses(layers)
    assert addresses.unchanged()
    move(layers)
    assert not addresses.unchanged()
    assert Addresses(layers).unchanged()


def test_another_dtype_at_the_same_address_is_noticed() -> None:
    layers = network().half()
    addresses = Addresses(layers)
    layers[2].weight.data = layers[2].weight.data.view(torch.bfloat16)
    assert not addresses.unchanged()


def test_values_may_change_in_place() -> None:
    layers = network()
    addresses = Addresses(layers)
    layers.load_state_dict({name: value + 1 for name, value in network().state_dict().items()})
    with torch.no_grad():
        layers[0].weight.mul_(2.0)
    layers.to(torch.float32).requires_grad_(False)
    assert addresses.unchanged()


def test_the_same_memory_may_be_held_by_another_parameter() -> None:
    layers = network()
    addresses = Addresses(layers)
    layers[0].weight = nn.Parameter(layers[0].weight.data)
    layers.note = [1.0]  # type: ignore[assignment]
    assert addresses.unchanged()
    layers[0].weight.data = torch.zeros(3, 2)
    assert not addresses.unchanged()


def test_nothing_is_searched_for_while_nothing_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = network()
    addresses = Addresses(layers)
    monkeypatch.setattr("muninn.identity.watch.Snapshot", None)
    layers(torch.zeros(1, 2))
    assert addresses.unchanged()


class Remembering(nn.Module):
    """Keeps results of its last call; reads a table."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.last = torch.zeros(1)
        self.all: list[Tensor] = []
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(2)
        self.last = self.layers(x)
        self.all.append(self.last)
        return self.last * self.table


def test_what_a_network_makes_anew_in_every_call_is_not_looked_at() -> None:
    module = Remembering()
    call = functools.partial(module, torch.zeros(1, 2))
    call()
    plain, settled = Addresses(module), Addresses(module, rerun=call)
    for _ in range(2):
        call()
        assert not plain.unchanged() and settled.unchanged()
    module.table = torch.ones(2)
    assert not settled.unchanged()
    settled = Addresses(module, rerun=call)
    module.layers = network()
    assert not settled.unchanged()


def test_memory_is_held_so_that_no_other_tensor_gets_the_address() -> None:
    """Without a hold the allocator gives the freed address to the next tensor of that size."""
    layers = nn.Sequential(nn.Linear(64, 64, bias=False))
    addresses = Addresses(layers)
    for _ in range(50):
        layers[0].weight.data = torch.zeros(64, 64)
        assert not addresses.unchanged()


class Attribute:
    def __init__(self, layers: nn.Module) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def closure(layers: nn.Module) -> Any:
    return lambda x, timestep, context: layers(x)


def partial(layers: nn.Module) -> Any:
    return functools.partial(lambda x, timestep, context, layers: layers(x), layers=layers)


def guided(layers: nn.Module) -> Any:
    return ClassifierFreeGuidance(Attribute(layers), lambda context: None, 2.0)


def method(layers: nn.Module) -> Any:
    return Attribute(layers).__call__


@pytest.mark.parametrize("wrap", [Attribute, closure, partial, guided, method])
def test_weights_are_found_behind(wrap: Callable[[nn.Module], Any]) -> None:
    layers = network()
    addresses = Addresses(wrap(layers), None)
    assert addresses.unchanged()
    layers.double()
    assert not addresses.unchanged()


class Wrapped(Tensor):
    """A tensor made of another, without memory of its own, as quantised weights are."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made: Wrapped = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    inner: Tensor

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("not computed with here")


def test_tensors_made_of_others_count_as_objects() -> None:
    layers = network()
    plain = Addresses(layers)
    layers[1].running_mean = Wrapped(torch.zeros(3))
    assert not plain.unchanged()
    wrapped = Addresses(layers)
    assert wrapped.unchanged()
    layers[1].running_mean = Wrapped(torch.zeros(3))
    assert not wrapped.unchanged()


def test_a_lazy_module_counts_once_it_has_weights() -> None:
    layers = nn.Sequential(nn.LazyLinear(3))
    addresses = Addresses(layers)
    assert addresses.unchanged()
    layers(torch.zeros(1, 2))
    filled = Addresses(layers)
    layers.double()
    assert not filled.unchanged()
