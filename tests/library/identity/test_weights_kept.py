"""What leaves a network as it was is no change; copies and memory of what is watched."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deployed_cases import assigned, count_prints, deployed, require_cached, require_full, scaled
from muninn.identity.watch import Watch
from replacing_cases import Hiding, Wrapper, network


@pytest.fixture
def prints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return count_prints(monkeypatch)


def reloaded(layers: nn.Module) -> None:
    layers.load_state_dict(copy.deepcopy(layers.state_dict()))


def moved_there_and_back(layers: nn.Module) -> None:
    layers.double().float()


def reassigned(layers: nn.Module) -> None:
    layers.load_state_dict(copy.deepcopy(layers.state_dict()), assign=True)


def trained_and_back(layers: nn.Module) -> None:
    layers.train()
    layers.eval()


def frozen(layers: nn.Module) -> None:
    layers.requires_grad_(False)


@pytest.mark.parametrize("touch", [reloaded, moved_there_and_back, reassigned])
def test_the_same_weights_elsewhere_are_identified_once_and_cached(
    touch: Callable[[nn.Module], None], prints: list[Any]
) -> None:
    layers = network()
    fast = deployed(Wrapper(layers))
    for made in (1, 2):
        touch(layers)
        for _ in range(2):
            require_cached(fast)
        assert len(prints) == made


@pytest.mark.parametrize("touch", [trained_and_back, frozen])
def test_what_changes_nothing_costs_nothing(
    touch: Callable[[nn.Module], None], prints: list[Any]
) -> None:
    layers = network()
    fast = deployed(Wrapper(layers))
    touch(layers)
    require_cached(fast)
    assert not prints


def test_an_equal_network_in_its_place_is_as_good() -> None:
    wrapper = Wrapper(network())
    fast = deployed(wrapper)
    wrapper.layers = copy.deepcopy(wrapper.layers)
    require_cached(fast)


class Remembering(nn.Module):
    """Keeps what it computed last, as networks do that are looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.last: Tensor | None = None
        self.evaluations = 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layers(x)
        self.evaluations += 1
        return self.last


def test_what_a_network_keeps_of_its_calls_is_no_weight(prints: list[Any]) -> None:
    module = Remembering()
    fast = deployed(Wrapper(module))
    for _ in range(3):
        require_cached(fast)
    assert not prints
    scaled(module.layers)
    require_full(fast)


def test_tables_of_a_module_are_watched_like_weights() -> None:
    module = Hiding()
    fast = deployed(Wrapper(module))
    own = module.table
    module.table = torch.ones(8)
    require_full(fast)
    module.table = own.clone()
    require_cached(fast)


def test_a_search_is_repeated_only_when_something_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Remembering()
    fast = deployed(Wrapper(module))
    require_cached(fast)  # ``last`` was None
    monkeypatch.setattr("muninn.identity.watch.Snapshot", None)
    require_cached(fast)


# -- copies and memory -----------------------------------------------------------------------------


def test_a_copy_watches_weights_of_its_own() -> None:
    fast = deployed(Wrapper(network()))
    twin = copy.deepcopy(fast)
    scaled(twin.planner.denoiser.layers)  # type: ignore[attr-defined]
    require_full(twin)
    require_cached(fast)
    require_full(copy.deepcopy(twin))
    scaled(fast.planner.denoiser.layers)  # type: ignore[attr-defined]
    require_full(copy.deepcopy(fast))


def test_weights_that_were_replaced_are_let_go_by_the_next_call() -> None:
    layers = network()
    fast = deployed(Wrapper(layers))
    held = weakref.ref(layers[0].weight)
    assigned(layers)
    require_full(fast)
    gc.collect()
    assert held() is None


def test_changes_are_told_from_the_state_that_was_seen_first() -> None:
    layers = network()
    weights = Watch(layers)
    assert weights.change()() is None
    scaled(layers)
    assert (
        weights.change()() == "weights or settings" and weights.change()() == "weights or settings"
    )
    assert Watch(layers).change()() is None
