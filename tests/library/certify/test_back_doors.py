"""Ways to hold a certificate that is not true, or to lose one, each tried with public verbs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from door_cases import (
    DEVICE,
    ENGINES,
    SHAPE,
    STEPS,
    TOLERANCE,
    Small,
    certify,
    contexts,
    planner,
)
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.errors import CalibrationError, CertificateError
from muninn.model.denoiser import known_timestep
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler

engines = pytest.mark.parametrize("engine", ENGINES)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


# -- the same weights in another computation ------------------------------------------------


@engines
def test_the_same_weights_in_another_network_are_refused(engine: Any) -> None:
    issued = certify(planner(engine=engine))
    assert cache(planner(engine=engine), issued).reason is None
    others = {"activation": Small(nn.ReLU()), "integer setting": Small(), "code": Small()}
    others["integer setting"].repeats = 2
    others["code"]._layers = lambda hidden: 1.5 * hidden[:, :16]  # type: ignore[method-assign]
    quantised = Small()
    if DEVICE.type == "cpu" and engine == "eager":
        others["quantised"] = torch.ao.quantization.quantize_dynamic(quantised, {nn.Linear})
    for network in others.values():
        own = planner(network, engine)
        with pytest.raises(CertificateError, match=r"network: its answers|model\."):
            cache(own, issued)
        safe = cache(own, issued, on_mismatch="full")
        _, record = safe(contexts(2), noise=own.draw_noise(2))
        assert safe.certificate is None and record.fallbacks == 2


@engines
def test_code_that_runs_only_where_the_host_knows_the_timestep_is_refused(engine: Any) -> None:
    issued = certify(planner(engine=engine))
    network = Small()

    def edited(hidden: Tensor) -> Tensor:
        return (1.0 if known_timestep() is None else 1.5) * Small._layers(network, hidden)

    network._layers = edited  # type: ignore[method-assign]
    with pytest.raises(CertificateError, match="network: its answers"):
        cache(planner(network, engine), issued)


def test_code_that_runs_only_where_the_host_does_not_know_it_is_refused_on_an_engine() -> None:
    issued = certify(planner(engine="compile"))
    network = Small()

    def edited(hidden: Tensor) -> Tensor:
        return (1.5 if known_timestep() is None else 1.0) * Small._layers(network, hidden)

    network._layers = edited  # type: ignore[method-assign]
    with pytest.raises(CertificateError, match="network: its answers"):
        cache(planner(network, "compile"), issued)


def hooked(network: Small) -> None:
    network.first.register_forward_hook(lambda module, given, found: 1.5 * found)


def with_other_forward(network: Small) -> None:
    network.first.forward = lambda given: torch.zeros(len(given), 32, device=given.device)  # type: ignore[method-assign]


def with_other_method(network: Small) -> None:
    network._layers = lambda hidden: 0.1 * hidden[:, :16]  # type: ignore[method-assign]


def with_other_setting(network: Small) -> None:
    network.repeats = 3


def in_train_mode(network: Small) -> None:
    network.dropout.train()


def with_other_weights(network: Small) -> None:
    with torch.no_grad():
        network.last.weight.mul_(2.0)


CHANGES = [
    hooked, with_other_forward, with_other_method, with_other_setting, in_train_mode,
    with_other_weights,
]  # fmt: skip


@engines
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_network_that_is_changed_later_is_noticed_at_the_next_call(
    change: Any, engine: Any
) -> None:
    network = Small()
    own = planner(network, engine)
    issued = certify(own)
    noise = own.draw_noise(2)
    for on_mismatch in ("error", "full"):
        fast = cache(own, issued, on_mismatch=on_mismatch)  # type: ignore[arg-type]
        assert fast(contexts(2), noise=noise)[1].fallbacks == 0
        changed = Small()
        changed.load_state_dict(network.state_dict())
        own2 = planner(changed, engine)
        fast = cache(own2, issued, on_mismatch=on_mismatch)  # type: ignore[arg-type]
        assert fast(contexts(2), noise=noise)[1].fallbacks == 0
        change(changed)
        if on_mismatch == "error":
            with pytest.raises(CertificateError, match=r"^network: "):
                fast(contexts(2), noise=noise)
        else:
            _, record = fast(contexts(2), noise=noise)
            assert record.fallbacks == 2 and record.bound is None
            assert str(record.fallback[0]).startswith("network: ")


def test_a_method_of_the_class_and_a_hook_of_all_modules_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = planner()
    fast = cache(own, certify(own), on_mismatch="full")
    noise = own.draw_noise(1)
    assert fast(contexts(1), noise=noise)[1].fallbacks == 0
    with monkeypatch.context() as patch:
        patch.setattr(Small, "_layers", lambda self, hidden: 0.5 * hidden[:, :16])
        assert fast(contexts(1), noise=noise)[1].fallbacks == 1
    assert fast(contexts(1), noise=noise)[1].fallbacks == 0
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert fast(contexts(1), noise=noise)[1].fallbacks == 1
    finally:
        handle.remove()
    assert fast(contexts(1), noise=noise)[1].fallbacks == 0


class Forgetful(nn.Module):
    """Answers depend on how often it was asked; a buffer counts."""

    count: Tensor

    def __init__(self, step: float) -> None:
        super().__init__()
        self.inner, self.step = Small(), step
        self.register_buffer("count", torch.zeros((), device=DEVICE))
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        self.count += 1
        found: Tensor = self.inner(x, timestep, context)
        return found + self.step * self.count


def test_answers_that_cannot_be_repeated_are_refused_and_nothing_is_left_behind() -> None:
    network = Forgetful(0.1)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with pytest.raises(CalibrationError, match=r"does not repeat itself|answers the same question"):
        certify(planner(network))
    assert float(network.count) == 0.0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_asking_leaves_buffers_and_generators_as_they_were() -> None:
    network = Forgetful(0.0)
    own = planner(network)
    issued = certify(own)
    count = float(network.count)
    torch.manual_seed(5)
    before, numbers = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    issued = replace(issued, identity=own.identity())  # the count is part of its weights
    assert issued.other_answers(own) == []
    assert float(network.count) == count
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numbers)  # type: ignore[index]


# -- identities ---------------------------------------------------------------------------


def test_a_sampler_built_by_hand_is_known_by_its_table() -> None:
    own = planner()
    issued = certify(own)
    steps = [replace(step, from_sample=1.1 * step.from_sample) for step in own.sampler.steps]
    details = {
        name: value
        for name, value in own.sampler.describe().items()
        if name not in ("name", "kind", "steps", "clip", "keep_epsilon", "table")
    }
    other = Sampler(own.sampler.name, own.sampler.kind, steps, flow=False, details=details)
    with pytest.raises(CertificateError, match=r"sampler\.table"):
        cache(replace(own, sampler=other), issued)


def test_another_condition_of_the_same_name_is_refused() -> None:
    def made(value: float) -> Any:
        def pin(x: Tensor, context: Any) -> Tensor:
            x[:, 0] = value
            return x

        return pin

    issued = certify(planner(condition=made(0.0)))
    assert cache(planner(condition=made(0.0)), issued).reason is None
    with pytest.raises(CertificateError, match="the planner's condition is another one"):
        cache(planner(condition=made(0.7)), issued)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: {"rows": contexts(1)}, r"context\['rows'\]"),
        (lambda: contexts(1).double(), "float64"),
        (lambda: contexts(4).view(2, 8), r"\(8,\)"),
        (lambda: contexts(1)[0], r"context\[None\]"),
        (lambda: None, "missing"),
    ],
)
def test_contexts_of_another_form_are_refused_or_planned_in_full(given: Any, words: str) -> None:
    own = planner(Tolerant())
    issued = certify(own)
    with pytest.raises(CertificateError, match=rf"^context: .*{words}"):
        cache(own, issued)(given())
    _, record = cache(own, issued, on_mismatch="full")(given())
    assert record.bound is None and "context: " in str(record.fallback[0])


class Tolerant(nn.Module):
    """Makes something of any context."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        if isinstance(context, dict):
            context = context["rows"]
        rows = torch.zeros(len(x), 4, device=x.device) if context is None else context
        pooled = rows.reshape(len(x), -1).float().mean(dim=1, keepdim=True)
        found: Tensor = self.inner(x, timestep, pooled.expand(-1, 4))
        return found


# -- what they all rest on ---------------------------------------------------------------------


@engines
def test_an_untouched_planner_is_cached_from_its_file(engine: Any, tmp_path: Path) -> None:
    own = planner(engine=engine)
    path = certify(own).save(tmp_path / "c.safetensors")
    again: Planner = planner(engine=engine)
    fast = cache(again, path)
    trajectory, record = fast(contexts(3), noise=own.draw_noise(3))
    assert record.fallbacks == 0 and record.evaluations.max() < STEPS
    assert trajectory.shape == (3, *SHAPE)
    loaded = Certificate.load(path)
    assert loaded.tolerance == TOLERANCE and loaded.questions is not None
    assert loaded.questions.elsewhere(DEVICE) is None
