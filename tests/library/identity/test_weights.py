"""A certificate holds for the network it was made for: one that was changed since runs in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deployed_cases import (
    SAMPLER,
    WORDS,
    assigned,
    count_prints,
    deployed,
    require_cached,
    require_full,
    scaled,
)
from muninn.identity.watch import Watch
from muninn.model.denoiser import GradientGuidance
from recording_cases import record_instead_of_cuda
from replacing_cases import CHANGES, Wrapper, network


@pytest.fixture
def prints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return count_prints(monkeypatch)


def scaled_in_inference_mode(layers: nn.Sequential) -> None:
    with torch.inference_mode():
        layers[2].weight.mul_(30.0)


def loaded(layers: nn.Sequential) -> None:
    layers.load_state_dict(network(1).state_dict())


def averaged_weights_copied_in(layers: nn.Sequential) -> None:
    """As averages of weights are swapped in; torch does not count writes through ``.data``."""
    for weight, other in zip(layers.parameters(), network(1).parameters(), strict=True):
        weight.data.copy_(other.data)


def data_set(layers: nn.Sequential) -> None:
    layers[2].weight.data = network(1)[2].weight.data


def data_set_to_other_strides(layers: nn.Sequential) -> None:
    layers[2].weight.data = layers[2].weight.data.view(16, 8).t()


def replaced(layers: nn.Sequential) -> None:
    layers[2].bias = nn.Parameter(torch.ones(8))


def removed(layers: nn.Sequential) -> None:
    layers[2].bias = None


def layer_added(layers: nn.Sequential) -> None:
    layers.append(nn.Linear(8, 8))


def activation_replaced(layers: nn.Sequential) -> None:
    layers[1] = nn.SiLU()  # with the settings of Mish, which are all that a fingerprint sees of it


def in_train_mode(layers: nn.Sequential) -> None:
    layers.train()


PLACES: list[Callable[[nn.Sequential], None]] = [
    scaled,
    scaled_in_inference_mode,
    loaded,
    assigned,
    averaged_weights_copied_in,
    data_set,
    data_set_to_other_strides,
    replaced,
    removed,
    layer_added,
    activation_replaced,
    in_train_mode,
]


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("change", PLACES, ids=lambda change: change.__name__)
def test_a_changed_network_is_full_compute_until_it_is_put_back(
    change: Callable[[Any], None], engine: str, monkeypatch: pytest.MonkeyPatch, prints: list[Any]
) -> None:
    record_instead_of_cuda(monkeypatch)
    layers = network()
    wrapper = Wrapper(layers)
    fast = deployed(wrapper, engine)
    require_cached(fast)
    assert not prints
    change(layers)
    for _ in range(2):
        require_full(fast)
    assert len(prints) == 1
    wrapper.layers = network()
    for _ in range(2):
        require_cached(fast)
    assert len(prints) == 2


WEIGHTS_CHANGED = [
    "attribute_of_a_wrapper",
    "global_variable",
    "global_variable_in_a_comprehension",
    "global_variable_in_a_method",
    "closure",
    "default_argument",
    "slot",
    "attribute_of_a_class",
    "module_in_a_list",
    "weights_of_a_module_in_a_list",
    "train_mode_of_a_hidden_part",
    "layer_that_is_added",
    "layer_without_weights_that_is_added",
    "layer_without_weights_that_is_replaced",
    "bias_that_was_not_there",
]


@pytest.mark.parametrize("name", WEIGHTS_CHANGED)
def test_networks_are_watched_wherever_they_are_held(name: str) -> None:
    made = CHANGES[name]()
    fast = deployed(made.denoiser)
    require_cached(fast)
    made.change()
    require_full(fast)


def test_weights_made_in_inference_mode_are_watched_too() -> None:
    with torch.inference_mode():
        layers = network()
    fast = deployed(Wrapper(layers))
    require_cached(fast)
    with torch.inference_mode():
        layers[0].weight.mul_(2.0)
    require_full(fast)


def test_a_compiled_network_is_watched_like_its_original(prints: list[Any]) -> None:
    layers = network()
    fast = deployed(Wrapper(torch.compile(layers, backend="eager")))
    for _ in range(2):
        require_cached(fast)
    assert not prints
    scaled(layers)
    require_full(fast)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
)
def test_numbers_of_every_dtype_are_compared_and_nan_is_equal_to_itself(dtype: torch.dtype) -> None:
    weight = torch.full((3, 3), float("nan"), dtype=dtype)
    module = nn.Module()
    module.register_buffer("weight", weight)
    module.register_buffer("flag", torch.zeros(2, dtype=torch.bool))
    weights = Watch(module)
    assert weights.change()() is None
    module.get_buffer("flag").data.fill_(True)
    assert weights.change()() == "weights or settings"
    module.get_buffer("flag").data.fill_(False)
    assert weights.change()() is None
    weight.data.fill_(1.0)
    assert weights.change()() == "weights or settings"


class WithArray:
    def __init__(self) -> None:
        self.layers, self.scale = network(), np.ones(8)

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = self.layers(x.flatten(1)) * torch.tensor(self.scale, dtype=x.dtype)
        return found.view_as(x)


def test_another_array_is_noticed() -> None:
    denoiser = WithArray()
    fast = deployed(denoiser)
    denoiser.scale = np.ones(8)
    require_cached(fast)
    denoiser.scale = np.full(8, 2.0)
    require_full(fast)


def test_another_scale_of_guidance_is_noticed() -> None:
    def objective(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return -x.flatten(1).square().sum(1)

    guidance = GradientGuidance(Wrapper(network()), objective, 0.1, SAMPLER)
    fast = deployed(guidance)
    require_cached(fast)
    guidance.scale = 0.3
    require_full(fast, f"{WORDS} (model.guidance.scale: certificate 0.1, planner 0.3")
    guidance.scale = 0.1
    require_cached(fast)
