"""Recorded calls answer as the calls did: work in place, views, and every kind of output."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from muninn.context import select
from muninn.errors import InputError
from muninn.paper.named_split import NamedSplit
from split_cases import DIM, PARTS, counting, inputs


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Planners run without gradients."""
    with torch.no_grad():
        yield


# -- work in place -------------------------------------------------------------------------------


class InPlace(nn.Module):
    """Layers and one of several ways to write where others still read."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.way = way
        self.a, self.b, self.c = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.act, self.same, self.flat = nn.ReLU(inplace=True), nn.Identity(), nn.Flatten()
        self.halve = Halve()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        if self.way == "state":
            x.mul_(2.0)
        if self.way == "state by a submodule":
            self.act(x)
        if self.way == "timestep":
            timestep.mul_(10)
        h = self.a(x)
        kept = h
        if self.way == "output":
            h += x
        elif self.way == "activation":
            self.act(h)
        elif self.way == "handed through":
            self.same(h).mul_(3.0)
        elif self.way == "view":
            self.flat(h).mul_(3.0)
        elif self.way == "written and new":
            h = self.halve(h, False)
        elif self.way == "written and viewed":
            h = self.halve(h, True)
        late = self.flat(h).view(h.shape) if self.way == "view of the core" else h
        h = self.b(h)
        if self.way == "probed output":
            h.mul_(3.0)
        if self.way == "view of the core":
            late.mul_(3.0)
        out: Tensor = self.c(h) + kept + 0.1 * timestep[:, None, None]
        return out


class Halve(nn.Module):
    """Halves its input in place and returns a view of it, or something else."""

    def forward(self, h: Tensor, view: bool) -> Tensor:
        h.div_(2.0)
        return h[:] if view else h.cos()


WAYS = [
    "state",
    "state by a submodule",
    "timestep",
    "output",
    "activation",
    "handed through",
    "view",
    "view of the core",
    "written and new",
    "written and viewed",
    "probed output",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__)
def test_work_in_place_goes_where_it_went(way: str, mode: Any) -> None:
    network = InPlace(way)
    split = NamedSplit(network, network, "b", "tokens")
    with mode():
        for rows in PARTS:
            x, t, _ = inputs()
            hidden = split.stem(x, t, None)
            assert torch.equal(x, inputs()[0]) and torch.equal(t, inputs()[1])
            plain = [part[rows].clone() for part in (x, t)]
            expected = network(*plain, None)
            parts = [part[rows].clone() for part in (x, t)]
            found = split.core(select(hidden, rows), *parts, None)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(parts[0], plain[0])  # the state is followed, once
            if rows == slice(None):
                assert torch.equal(found, expected)


def test_a_submodule_that_writes_and_returns_a_view_is_not_run_again() -> None:
    network, (x, t, _) = InPlace("written and viewed"), inputs()
    split, counts = NamedSplit(network, network, "b", "tokens"), counting(network)
    hidden = split.stem(x, t, None)
    assert counts == {"": 1, "a": 1, "halve": 1, "b": 1}
    counts.clear()
    split.core(hidden, x, t, None)
    assert counts == {"": 1, "c": 1}


@pytest.mark.parametrize("name", ["act", "same", "flat"])
def test_a_probe_that_hands_its_input_on_keeps_its_own_value(name: str) -> None:
    way = {"act": "activation", "same": "handed through", "flat": "view"}[name]
    network, (x, t, _) = InPlace(way), inputs()
    split = NamedSplit(network, network, name, lambda output: output.flatten(1))
    value = network.a(x).relu() if name == "act" else network.a(x)
    hidden = split.stem(x, t, None)
    expected = network(x, t, None)
    assert torch.equal(split.core(hidden, x, t, None), expected)
    assert torch.equal(split.feature(hidden, x), value.flatten(1))


# -- kinds of output -----------------------------------------------------------------------------


class Pair(NamedTuple):
    features: Tensor
    scalar: Tensor


@dataclass
class Held:
    features: Tensor
    note: str


class Output(OrderedDict[str, Any]):
    """A dict whose entries are attributes as well, as of diffusers and transformers."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


WRAPPERS: dict[str, Callable[[Tensor], Any]] = {
    "named tuple": lambda h: Pair(h, torch.tensor(2.0)),
    "list": lambda h: [None, {"inside": h}],
    "dataclass": lambda h: Held(h, "kept"),
    "dict with attributes": lambda h: Output(features=h, flag=True),
}


class Wrapping(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(DIM, DIM), kind

    def forward(self, h: Tensor) -> Any:
        return WRAPPERS[self.kind](self.inner(h))


class Nested(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.a, self.b, self.kind = Wrapping(kind), nn.Linear(DIM, DIM), kind

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        held = self.a(x)
        h = held[1]["inside"] if self.kind == "list" else held.features
        if self.kind == "named tuple":
            h = h * held.scalar
        if self.kind == "dataclass":
            assert held.note == "kept"
        h += 1.0
        out: Tensor = self.b(h)
        return out


@pytest.mark.parametrize("kind", list(WRAPPERS))
def test_nests_keep_their_kind(kind: str) -> None:
    network, (x, t, _) = Nested(kind), inputs()
    expected = network(x, t, None)
    split = NamedSplit(network, network, "b", "tokens")
    hidden = split.stem(x, t, None)
    assert torch.equal(split.core(hidden, x, t, None), expected)
    rows = torch.tensor([4, 1])
    part = split.core(select(hidden, rows), x[rows], t[rows], None)
    torch.testing.assert_close(part, expected[rows])


def test_a_probe_that_returns_a_nest_needs_a_function_as_pool() -> None:
    network, (x, t, _) = Nested("dataclass"), inputs()
    plain = NamedSplit(network, network, "a", "tokens")
    with pytest.raises(InputError, match=r"from the output of 'a', Held; .* function"):
        plain.feature(plain.stem(x, t, None), x)
    split = NamedSplit(network, network, "a", lambda held: held.features.double().mean(1))
    hidden = select(split.stem(x, t, None), torch.tensor([2, 0]))
    feature = split.feature(hidden, x[:2])
    assert feature.dtype == torch.float32
    torch.testing.assert_close(feature, network.a.inner(x).mean(1)[[2, 0]])
