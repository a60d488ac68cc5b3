"""Whatever is replaced or edited within a network's reach, the watch notices it."""

from __future__ import annotations

import datetime
import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from muninn.identity.watch import Addresses, Watch


class Holder:
    """Holds anything beside a layer."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.layer = nn.Linear(2, 2)

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = self.layer(x)
        return found


class Doubled(Holder):
    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return 2 * super().__call__(x, timestep, context)


class Listed(list[float]):
    """A container of a class of its own, with an attribute."""

    scale: float


def settled(value: float) -> Listed:
    made = Listed([1.0])
    made.scale = value
    return made


PAIRS: dict[str, tuple[Any, Any]] = {
    "function of torch": (torch.relu, torch.tanh),
    "method of a tensor": (Tensor.tanh, Tensor.sin),
    "function of numpy": (np.tanh, np.sin),
    "function of C": (operator.itemgetter(0), operator.itemgetter(1)),
    "partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "class": (nn.ReLU, nn.SiLU),
    "module of Python": (functools, operator),
    "sparse tensor": (torch.ones(3).to_sparse(), torch.zeros(3).to_sparse()),
    "object of torch": (torch.distributions.Normal(0, 1), torch.distributions.Laplace(0, 1)),
    "object that cannot be looked into": (datetime.date(2000, 1, 1), datetime.date(2000, 1, 2)),
    "equal number of another type": (2, 2.0),
    "attribute of a container": (settled(1.0), settled(2.0)),
}


def in_a_dict(holder: Holder, held: Any) -> None:
    holder.held["held"] = held


def as_an_attribute(holder: Holder, held: Any) -> None:
    holder.held = held


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("put", [in_a_dict, as_an_attribute])
def test_what_is_replaced_is_noticed(name: str, put: Callable[[Holder, Any], None]) -> None:
    first, second = PAIRS[name]
    holder = Holder({"held": first} if put is in_a_dict else first)
    watch = Watch(holder)
    assert watch.change()() is None
    put(holder, second)
    assert watch.change()() is not None
    assert watch.change()() is not None  # it is not taken for the network's own later
    put(holder, first)
    assert watch.change()() is None


def another_class(holder: Holder) -> None:
    holder.__class__ = Doubled


def another_class_of_a_module(holder: Holder) -> None:
    holder.held.__class__ = nn.SiLU  # with the same attributes, of a library


def edited_code(holder: Holder) -> None:
    holder.act.__code__ = (lambda x: 2 * x).__code__  # type: ignore[attr-defined]


def layer_in_an_empty_sequence(holder: Holder) -> None:
    holder.empty.append(nn.Tanh())  # type: ignore[attr-defined]


def entry_in_an_empty_dict(holder: Holder) -> None:
    holder.held.overrides["act"] = torch.tanh


@pytest.mark.parametrize(
    "edit",
    [
        another_class,
        another_class_of_a_module,
        edited_code,
        layer_in_an_empty_sequence,
        entry_in_an_empty_dict,
    ],
)
def test_edits_in_place_are_noticed_by_certificates_and_graphs(
    edit: Callable[[Holder], None],
) -> None:
    """As IPython's autoreload makes them."""
    holder = Holder(nn.ReLU())
    holder.empty, holder.held.overrides = nn.Sequential(), {}  # type: ignore[attr-defined]
    holder.act = types.FunctionType((lambda x: x).__code__, {})  # type: ignore[attr-defined]
    watch, addresses = Watch(holder), Addresses(holder)
    assert watch.change()() is None and addresses.unchanged()
    edit(holder)
    assert watch.change()() is not None and not addresses.unchanged()


def reads_what_it_imports(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
    from own_constants import scale  # type: ignore[import-not-found]

    found: Tensor = scale * x
    return found


def test_what_a_function_imports_by_itself_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_constants")
    module.scale = 1.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_constants", module)
    watch = Watch(reads_what_it_imports)
    assert watch.change()() is None
    module.scale = 2.0  # type: ignore[attr-defined]
    assert watch.change()() == "weights or settings"


def test_a_buffer_that_is_written_in_place_is_still_followed_by_graphs() -> None:
    norm = nn.BatchNorm1d(2)
    addresses = Addresses(norm, rerun=lambda: norm(torch.randn(4, 2)))
    norm(torch.randn(4, 2))
    assert addresses.unchanged()
    norm.running_mean = torch.zeros(2)
    assert not addresses.unchanged()
