"""Ways to replace what a denoiser computes with, once a call was captured or a cache is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runtime_cases import SHAPE


def network(seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Mish(), nn.Linear(16, 8, bias=bias)).eval()


class Wrapper:
    """The usual one: holds layers, and shapes what goes in and out."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = self.layers(x.flatten(1))
        return found.view_as(x)


class Change(NamedTuple):
    """A denoiser, a condition or None, and what is done to them after the capture."""

    denoiser: Any
    change: Callable[[], Any]
    condition: Any = None


CHANGES: dict[str, Callable[[], Change]] = {}


def case(make: Callable[[], Change]) -> Callable[[], Change]:
    CHANGES[make.__name__] = make
    return make


# -- holders that are rebound ------------------------------------------------------------------


@case
def attribute_of_a_wrapper() -> Change:
    wrapper = Wrapper(network())
    return Change(wrapper, lambda: setattr(wrapper, "layers", network(1)))


@case
def assigned_weights() -> Change:
    layers = network()
    other = network(1).state_dict()
    return Change(Wrapper(layers), lambda: layers.load_state_dict(other, assign=True))


GLOBAL: Any = None


def set_global(value: Any) -> None:
    global GLOBAL
    GLOBAL = value


def through_a_global(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
    return Wrapper(GLOBAL)(x, timestep, context)


@case
def global_variable() -> Change:
    set_global(network())
    return Change(through_a_global, lambda: set_global(network(1)))


def through_a_comprehension(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
    return torch.stack([GLOBAL(row.flatten()).view_as(row) for row in x])


@case
def global_variable_in_a_comprehension() -> Change:
    set_global(network())
    return Change(through_a_comprehension, lambda: set_global(network(1)))


class ThroughAGlobal:
    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return self.helper(x)

    @staticmethod
    def helper(x: Tensor) -> Tensor:
        found: Tensor = GLOBAL(x.flatten(1))
        return found.view_as(x)


@case
def global_variable_in_a_method() -> Change:
    set_global(network())
    return Change(ThroughAGlobal(), lambda: set_global(network(1)))


@case
def closure() -> Change:
    layers = network()

    def denoiser(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return Wrapper(layers)(x, timestep, context)

    def change() -> None:
        nonlocal layers
        layers = network(1)

    return Change(denoiser, change)


@case
def default_argument() -> Change:
    layers = network()

    def denoiser(x: Tensor, timestep: Tensor, context: Any, layers: Any = layers) -> Tensor:
        return Wrapper(layers)(x, timestep, context)

    return Change(denoiser, lambda: setattr(denoiser, "__defaults__", (network(1),)))


class Slots:
    __slots__ = ("__layers",)

    def __init__(self, layers: Any) -> None:
        self.set(layers)

    def set(self, layers: Any) -> None:
        self.__layers = layers

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return Wrapper(self.__layers)(x, timestep, context)


@case
def slot() -> Change:
    denoiser = Slots(network())
    return Change(denoiser, lambda: denoiser.set(network(1)))


class OfTheClass:
    layers = network()

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return Wrapper(self.layers)(x, timestep, context)


@case
def attribute_of_a_class() -> Change:
    OfTheClass.layers = network()
    return Change(OfTheClass(), lambda: setattr(OfTheClass, "layers", network(1)))


class Goal:
    def __init__(self, goal: Tensor | None) -> None:
        self.goal = goal

    def __call__(self, x: Tensor, context: Any) -> Tensor:
        if self.goal is not None:
            x[:, -1] = self.goal
        return x


@case
def goal_of_a_condition() -> Change:
    condition = Goal(torch.zeros(SHAPE[1]))
    change = lambda: setattr(condition, "goal", torch.ones(SHAPE[1]))  # noqa: E731
    return Change(Wrapper(network()), change, condition)


@case
def goal_that_was_not_there() -> Change:
    condition = Goal(None)
    change = lambda: setattr(condition, "goal", torch.ones(SHAPE[1]))  # noqa: E731
    return Change(Wrapper(network()), change, condition)


class Around:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = self.inner(x, timestep, context)
        return found


# -- inside of modules ---------------------------------------------------------------------------


class Hiding(nn.Module):
    """Keeps a network from its ``state_dict`` in a list, and has tensors besides its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [network()]
        self.table = torch.zeros(8)
        self.grown: Tensor | None = None
        self.register_buffer("offset", torch.zeros(8), persistent=False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.hidden[0](x) + self.table + self.get_buffer("offset")
        found = found if self.grown is None else found + self.grown
        return 2.0 * found if self.training else found


def hiding(change: Callable[[Hiding], Any]) -> Change:
    module = Hiding()
    return Change(Wrapper(module), lambda: change(module))


@case
def module_in_a_list() -> Change:
    return hiding(lambda module: module.hidden.__setitem__(0, network(1)))


@case
def weights_of_a_module_in_a_list() -> Change:
    other = network(1).state_dict()
    return hiding(lambda module: module.hidden[0].load_state_dict(other, assign=True))


@case
def tensor_attribute() -> Change:
    return hiding(lambda module: setattr(module, "table", torch.ones(8)))


@case
def tensor_attribute_that_was_none() -> Change:
    return hiding(lambda module: setattr(module, "grown", torch.ones(8)))


@case
def buffer_that_is_not_saved() -> Change:
    return hiding(lambda module: setattr(module, "offset", torch.ones(8)))


@case
def train_mode() -> Change:
    return hiding(lambda module: module.train())


@case
def train_mode_of_a_hidden_part() -> Change:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2.0 * x if self.training else x

    module = Hiding()
    module.hidden[0].append(Doubling().eval())
    return Change(Wrapper(module), lambda: module.hidden[0].train())


def sequential(change: Callable[[nn.Sequential], Any], bias: bool = True) -> Change:
    layers = network(bias=bias)
    return Change(Wrapper(layers), lambda: change(layers))


@case
def layer_that_is_added() -> Change:
    return sequential(lambda layers: layers.append(nn.Linear(8, 8)))


@case
def layer_without_weights_that_is_added() -> Change:
    return sequential(lambda layers: layers.append(nn.Tanh()))


@case
def layer_without_weights_that_is_replaced() -> Change:
    return sequential(lambda layers: layers.__setitem__(1, nn.Tanh()))


@case
def bias_that_was_not_there() -> Change:
    return sequential(lambda layers: setattr(layers[2], "bias", nn.Parameter(torch.ones(8))), False)


@case
def hook() -> Change:
    return sequential(lambda layers: layers.register_forward_hook(lambda *_: 0.5 * _[-1]))


@case
def forward_of_one_module() -> Change:
    def change(layers: nn.Sequential) -> None:
        plain = layers[2].forward
        layers[2].forward = lambda x: 0.5 * plain(x)

    return sequential(change)


@case
def other_strides_at_the_same_address() -> Change:
    def change(layers: nn.Sequential) -> None:
        layers[2].weight.data = layers[2].weight.data.view(16, 8).t()

    return sequential(change)
