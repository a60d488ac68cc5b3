"""Attacks of a tester who did not write the library: what a network holds is watched everywhere."""

from __future__ import annotations

import copy
import enum
import pickle
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from door_cases import DEVICE, SHAPE, Small, certify, contexts, planner
from muninn.adapters.call_level import intercept
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, InputError
from muninn.model.denoiser import GradientGuidance
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static


class Gain(enum.Enum):
    PLAIN = 1.0
    DOUBLE = 2.0


@dataclass(frozen=True)
class Config:
    scale: float = 1.0
    nested: Any = None


CONFIG = {"scale": 1.0}
HOLDER = types.ModuleType("holder")
HOLDER.scale = 1.0  # type: ignore[attr-defined]


class Net(nn.Module):
    """Multiplies by what it finds in one of many places."""

    shared: ClassVar[dict[str, float]] = {"scale": 1.0}

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.config = Config(nested=types.SimpleNamespace(scale=1.0))
        self.listed, self.pair, self.bag = [1.0], (1.0, 0.0), deque([1.0])
        self.number, self.kind = np.float32(1.0), Gain.PLAIN
        self.table = torch.ones((), device=DEVICE)
        self.tables = {"scale": torch.ones((), device=DEVICE)}
        self.array = np.ones(1)
        self.register_buffer("transient", torch.ones((), device=DEVICE), persistent=False)
        self.eval()

    @staticmethod
    def fixed() -> float:
        return 1.0

    @property
    def derived(self) -> float:
        return 1.0

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        scale = self.config.scale * self.config.nested.scale * self.listed[0] * self.pair[0]
        scale *= self.bag[0] * float(self.number) * self.kind.value * float(self.array[0])
        scale *= CONFIG["scale"] * HOLDER.scale * self.shared["scale"]  # type: ignore[attr-defined]
        scale *= self.fixed() * self.derived
        found: Tensor = scale * self.inner(x, timestep, context)
        return found * self.table * self.tables["scale"] * self.transient  # type: ignore[operator]


def set_item(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


PLACES: dict[str, Callable[[Net], Any]] = {
    "config replaced": lambda net: setattr(net, "config", replace(net.config, scale=2.0)),
    "nested setting": lambda net: setattr(net.config.nested, "scale", 2.0),
    "list item": lambda net: set_item(net.listed, 0, 2.0),
    "tuple replaced": lambda net: setattr(net, "pair", (2.0, 0.0)),
    "deque item": lambda net: set_item(net.bag, 0, 2.0),
    "numpy number": lambda net: setattr(net, "number", np.float32(2.0)),
    "enum": lambda net: setattr(net, "kind", Gain.DOUBLE),
    "table in place": lambda net: net.table.fill_(2.0),
    "table replaced": lambda net: setattr(net, "table", torch.full((), 2.0, device=DEVICE)),
    "dict of tensors": lambda net: net.tables["scale"].fill_(2.0),
    "array in place": lambda net: set_item(net.array, 0, 2.0),
    "transient buffer": lambda net: net.transient.fill_(2.0),  # type: ignore[operator]
    "global dict": lambda net: set_item(CONFIG, "scale", 2.0),
    "attribute of a module": lambda net: setattr(HOLDER, "scale", 2.0),
    "dict of the class": lambda net: set_item(Net.shared, "scale", 2.0),
    "static method": lambda net: setattr(Net, "fixed", staticmethod(lambda: 2.0)),
    "property": lambda net: setattr(Net, "derived", property(lambda self: 2.0)),
}


@pytest.fixture(autouse=True)
def put_back() -> Any:
    fixed, derived = vars(Net)["fixed"], vars(Net)["derived"]
    yield
    CONFIG["scale"] = Net.shared["scale"] = HOLDER.scale = 1.0  # type: ignore[attr-defined]
    Net.fixed, Net.derived = fixed, derived  # type: ignore[method-assign]


@pytest.mark.parametrize("place", PLACES)
def test_a_setting_that_is_changed_anywhere_is_noticed(place: str) -> None:
    net = Net()
    own = planner(net)
    fast = cache(own, certify(own))
    assert fast(contexts(1), noise=own.draw_noise(1))[1].fallbacks == 0
    PLACES[place](net)
    with pytest.raises(CertificateError, match=r"^network: "):
        fast(contexts(1), noise=own.draw_noise(1))


class Pin:
    """A condition with a goal of its own."""

    def __init__(self, goal: float) -> None:
        self.goal = torch.full((2,), goal, device=DEVICE)

    def __call__(self, x: Tensor, context: Any) -> Tensor:
        far = context[:, :1] > 4.0  # in none of the questions
        x[:, -1] = torch.where(far, self.goal, torch.zeros_like(self.goal))
        return x


def test_what_a_condition_holds_is_compared_when_loaded_and_at_every_call() -> None:
    condition = Pin(1.0)
    own = planner(condition=condition)
    issued = certify(own)
    with pytest.raises(CertificateError, match="condition_table"):
        cache(planner(condition=Pin(2.0)), issued)
    fast = cache(own, issued)
    condition.goal.fill_(2.0)
    with pytest.raises(CertificateError, match="condition_table"):
        fast(contexts(1), noise=own.draw_noise(1))


def test_a_sampler_cannot_be_edited_and_planners_can_be_pickled() -> None:
    own = planner()
    with pytest.raises(InputError, match="fixed once it is made"):
        own.sampler.clip = 5.0
    fast = cache(own, certify(own))
    noise = own.draw_noise(2)
    expected, _ = fast(contexts(2), noise=noise)
    for copied in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)):
        trajectory, record = copied(contexts(2), noise=noise)
        assert torch.equal(trajectory, expected) and record.fallbacks == 0


def test_full_compute_is_full_compute_while_a_network_is_intercepted() -> None:
    network = Small()
    own: Planner = planner(network)
    noise = own.draw_noise(3)
    expected = own.sample(contexts(3), noise=noise)
    family = Family.of(Forecast("sample", 0, False), (Everywhere(), Static((0, 6, 11))), "static")
    intercept(network, own, certify(own, family=family, tolerance=100.0))
    for _ in range(3):
        assert torch.equal(own.sample(contexts(3), noise=noise), expected)


def test_weights_made_in_inference_mode_are_compared_by_more_numbers() -> None:
    with torch.inference_mode():
        network = Small()
        network.first.weight[0] = 0.0  # as a padding row
    own = planner(network)
    fast = cache(own, certify(own))
    with torch.inference_mode():
        network.first.weight[1:].mul_(2.0)
    with pytest.raises(CertificateError, match=r"^network: "):
        fast(contexts(1), noise=own.draw_noise(1))


def test_an_empty_part_of_a_context_is_part_of_its_form() -> None:
    class Flagged(Net):
        def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
            return super().forward(x, timestep, context["rows"]) * (1 + len(context["flags"]))

    own = planner(Flagged())
    fast = cache(own, certify(own, {"rows": contexts(72), "flags": {}}))
    assert fast({"rows": contexts(1), "flags": {}})[1].fallbacks == 0
    with pytest.raises(CertificateError, match=r"context\['flags'\]"):
        fast({"rows": contexts(1), "flags": {"strong": {}}})


# -- certificates that are not lost --------------------------------------------------------------


class Bookkeeping(nn.Module):
    """Keeps times, words, counts and states that no answer uses."""

    count: Tensor

    def __init__(self, path: str = "here") -> None:
        super().__init__()
        self.inner, self.path = Small(), path
        self.seconds, self.note, self.latencies = 0.0, "", [0.0]
        self.recent: list[Tensor] = []
        self.register_buffer("count", torch.zeros((), device=DEVICE))
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        self.seconds += 0.25
        self.note = f"{len(x)} rows at {int(timestep[0])}"
        self.latencies.append(self.seconds)
        self.recent = [*self.recent, x.clone()][-3:]
        self.count += 1
        self.later = lambda: len(x)
        found: Tensor = self.inner(x, timestep, context)
        return found


def test_bookkeeping_loses_no_certificate(tmp_path: Path) -> None:
    used = planner(Bookkeeping())
    path = certify(used).save(tmp_path / "c.safetensors")
    for own in (used, planner(Bookkeeping("elsewhere"))):
        fast = cache(own, path)
        for rows in (1, 3, 2):
            assert fast(contexts(rows), noise=own.draw_noise(rows))[1].fallbacks == 0
        own.denoiser.inner.last.bias.data.add_(1.0)  # type: ignore[attr-defined]
        with pytest.raises(CertificateError, match=r"model\.weights"):
            fast(contexts(1), noise=own.draw_noise(1))
        own.denoiser.inner.last.bias.data.sub_(1.0)  # type: ignore[attr-defined]


# -- words instead of crashes ----------------------------------------------------------------------


def test_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    issued = certify(
        planner(),
        tolerance=np.float32(0.3),
        risk=np.float64(0.1),
        seed=np.int64(0),
        batch_size=np.int32(16),
        resume=tmp_path / "j",
    )
    assert Certificate.load(issued.save(tmp_path / "c")).batch_size == 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tolerance": "0.3"}, "tolerance must be a number"),
        ({"tolerance": None}, "tolerance must be a number"),
        ({"risk": "0.1"}, "risk must be a number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"batch_size": 16.0}, "batch_size must be a whole number"),
        ({"metric": None}, "metric is a name or a callable"),
        ({"family": "static"}, "family is a Family or None"),
        ({"reference": "x"}, "reference is a Planner or None"),
    ],
)
def test_wrong_arguments_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        certify(planner(), **changes)


def test_a_network_in_the_place_of_a_planner_is_refused() -> None:
    with pytest.raises(InputError, match=r"planner is a muninn\.Planner, got Small"):
        certify(Small())  # type: ignore[arg-type]


def test_gradient_guidance_works_in_inference_mode() -> None:
    own = planner()

    def objective(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return -x.flatten(1).square().sum(1)

    guided = replace(own, denoiser=GradientGuidance(own.denoiser, objective, 0.1, own.sampler))
    noise = guided.draw_noise(2)
    expected = guided.sample(contexts(2), noise=noise)
    with torch.inference_mode():
        found = guided.sample(contexts(2), noise=noise)
    assert torch.equal(found, expected) and found.shape == (2, *SHAPE)
