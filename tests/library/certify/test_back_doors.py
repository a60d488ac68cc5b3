"""Ways to hold a certificate that is not true, or to lose one, each tried with public verbs."""

from __future__ import annotations

import functools
import multiprocessing
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
    FAMILY,
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
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.errors import CalibrationError, CertificateError, InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler

engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# -- 1. full compute on other engines ----------------------------------------------------------


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "eager"])
def test_full_compute_of_another_engine_is_measured(engine: Any) -> None:
    own = planner(engine=engine)
    issued = certify(own)
    assert issued.realised[0]["member"] == 0 and issued.realised[0]["units"] > 0
    assert certify(planner()).realised[0]["member"] == 1  # where it is the very same computation


class Rounding(nn.Module):
    """Operations that a compiler fuses, so that their results round differently."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.norm = nn.LayerNorm(SHAPE).to(DEVICE)
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        found: Tensor = self.inner(x, timestep, context)
        return 0.1 * self.norm(3.7 * found.exp().sin()).softmax(dim=1).log() + found


def test_full_compute_that_rounds_differently_is_not_promised_to_be_exact() -> None:
    own = planner(Rounding(), "compile")
    context, noise = contexts(32), own.draw_noise(seeds=range(32))
    compiled, _ = runtime_for(own, FAMILY.member(0))(context, noise=noise)
    far = rms_step(own.sample(context, noise=noise), compiled)
    assert float(far.median()) > 0.0
    with pytest.raises(CalibrationError, match=r"full compute itself exceeds.*engine='eager'"):
        certify(own, tolerance=float(far.median()) / 10)
    eager = certify(planner(Rounding()), tolerance=float(far.median()) / 10)
    assert eager.member == 0


# -- 2. a resumed calibration is the same calibration ------------------------------------------

SCALE = 1.0


def by_global(full: Tensor, cached: Tensor) -> Tensor:
    return SCALE * rms_step(full, cached)


def by_closure(scale: Any) -> Any:
    def metric(full: Tensor, cached: Tensor) -> Tensor:
        return (scale * rms_step(full, cached)).flatten()

    return metric


def scaled(full: Tensor, cached: Tensor, scale: float) -> Tensor:
    return scale * rms_step(full, cached)


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, full: Tensor, cached: Tensor) -> Tensor:
        return self.scale * rms_step(full, cached)


EDITED: dict[str, Any] = {
    "integer in a closure": by_closure,
    "tensor in a closure": lambda scale: by_closure(torch.tensor(scale, device=DEVICE)),
    "argument of a partial": lambda scale: functools.partial(scaled, scale=scale),
    "state of an object": Scaled,
    "method of an object": lambda scale: Scaled(scale).__call__,
}


@engines
@pytest.mark.parametrize("kind", [*EDITED, "global"])
def test_an_edited_metric_is_not_resumed(
    kind: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = planner(engine=engine)

    def metric(scale: int) -> Any:
        if kind == "global":
            monkeypatch.setattr(f"{__name__}.SCALE", float(scale))
            return by_global
        return EDITED[kind](scale)

    first = certify(own, metric=metric(1), resume=tmp_path / "j")
    again = certify(own, metric=metric(1), resume=tmp_path / "j")
    assert again.save(tmp_path / "a").read_bytes() == first.save(tmp_path / "b").read_bytes()
    with pytest.raises(CalibrationError, match="another calibration: other metric"):
        certify(own, metric=metric(1000), resume=tmp_path / "j")


def test_what_cannot_be_compared_is_refused_with_the_way_out(tmp_path: Path) -> None:
    handle = multiprocessing.Lock()

    def metric(full: Tensor, cached: Tensor) -> Tensor:
        assert handle is not None
        return rms_step(full, cached)

    with pytest.raises(CalibrationError, match=r"handle in metric.*muninn_identity.*'v1'"):
        certify(planner(), metric=metric, resume=tmp_path / "j")
    certify(planner(), metric=metric)  # without resume nothing is compared
    metric.muninn_identity = "rms, first version"  # type: ignore[attr-defined]
    certify(planner(), metric=metric, resume=tmp_path / "j")
    metric.muninn_identity = "rms, second version"  # type: ignore[attr-defined]
    with pytest.raises(CalibrationError, match="another calibration: other metric"):
        certify(planner(), metric=metric, resume=tmp_path / "j")


class Named(nn.Module):
    """Reads a setting that stands beside the tensors of a context."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = context["gain"] * self.inner(x, timestep, context["rows"])
        return found


def test_contexts_that_are_not_tensors_are_compared_too(tmp_path: Path) -> None:
    own, rows = planner(Named()), contexts(72)
    certify(own, {"rows": rows, "gain": 1.0}, resume=tmp_path / "j")
    with pytest.raises(CalibrationError, match="another calibration: other calls"):
        certify(own, {"rows": rows, "gain": 0.5}, resume=tmp_path / "j")


def test_another_network_with_the_same_weights_is_not_resumed(tmp_path: Path) -> None:
    certify(planner(Small()), resume=tmp_path / "j")
    with pytest.raises(CalibrationError, match=r"another calibration: the planner's network"):
        certify(planner(Small(nn.ReLU())), resume=tmp_path / "j")


# -- 3. the same weights in another computation ------------------------------------------------


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


# -- 4. rows that influence each other ---------------------------------------------------------


class Centred(nn.Module):
    """Takes off the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        found: Tensor = self.inner(x, timestep, context)
        return found - found.mean(dim=0, keepdim=True) * (len(x) > 1)


@engines
def test_calls_that_influence_each_other_are_refused_or_calibrated_one_by_one(engine: Any) -> None:
    own = planner(Centred(), engine)
    with pytest.raises(CalibrationError, match=r"influence each other.*batch_size=1"):
        certify(own)
    if engine == "compile":
        return  # compiled once is enough
    issued = certify(own, batch_size=1)
    assert not issued.together
    fast = cache(own, issued)
    assert fast(contexts(1), noise=own.draw_noise(1))[1].fallbacks == 0
    with pytest.raises(CertificateError, match=r"batch: the call has 3 rows.*row by row"):
        fast(contexts(3), noise=own.draw_noise(3))


# -- 5. NaN in a calibration call --------------------------------------------------------------


class Skipping(nn.Module):
    """NaN for calls with a large context at one step, if a program comes there over a gap."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.last = [STEPS]
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        found: Tensor = self.inner(x, timestep, context)
        now = int(timestep[0])
        skipped = self.last[0] - now > 1
        self.last[0] = now
        bad = (context[:, 0] > 1.15) & skipped
        return torch.where(bad[:, None, None], torch.full_like(found, torch.nan), found)


def test_a_calibration_call_with_nan_is_planned_with_full_compute_and_counted() -> None:
    own, calls = planner(Skipping()), contexts(90)
    expected = int((calls[:, 0] > 1.15).sum())
    assert 3 <= expected <= 20
    issued = certify(own, calls)
    chosen = issued.realised[-1] if issued.realised[-1]["accepted"] else issued.realised[-2]
    assert issued.member > 0 and 0 < chosen["fallbacks"] <= expected
    assert len(issued.estimates) == issued.counts["certify"] - chosen["fallbacks"]
    assert np.isfinite(issued.estimates).all() and np.isfinite(issued.bound.quantile)
    assert chosen["evaluations_max"] > STEPS  # what a fall-back costs
    fast = cache(own, issued)
    hard = calls[calls[:, 0] > 1.15][:1]
    _, record = fast(hard, noise=own.draw_noise(1))
    assert record.fallbacks == 1 and np.isnan(record.estimate).all()
    assert record.bound is not None and record.bound[0] == 0.0
    assert record.rank is not None and record.rank[0] == 1.0


# -- 7. identities ---------------------------------------------------------------------------


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
        (lambda: {"rows": contexts(1)}, "context: "),
        (lambda: contexts(1).double(), "float64"),
        (lambda: contexts(4).view(2, 8), r"\[8\]"),
        (lambda: contexts(1)[0], r"context\[None\]"),
        (lambda: None, "context: "),
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


class Pooling(nn.Module):
    """Broadcasts: one number of context a row, or four."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        rows = torch.as_tensor(context, dtype=x.dtype, device=x.device).reshape(len(x), -1)
        found: Tensor = self.inner(x, timestep, rows[:, :1].expand(-1, 4))
        return found


# -- 9. full compute that cannot be repeated ---------------------------------------------------


@engines
def test_train_mode_is_refused_wherever_the_network_is(engine: Any) -> None:
    hidden = Small(dropout=0.05)
    hidden.train()

    def wrapped(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        found: Tensor = hidden(x, timestep, context)
        return found

    for denoiser in (hidden, wrapped, functools.partial(wrapped)):
        with pytest.raises(InputError, match=r"train mode.*call \.eval\(\)"):
            certify(planner(denoiser, engine))
    with pytest.raises(InputError, match=r"the reference's network is in train mode"):
        certify(planner(engine=engine), reference=planner(hidden))


class Noisy(nn.Module):
    """Draws random numbers, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        found: Tensor = self.inner(x, timestep, context)
        return torch.nn.functional.dropout(found, 0.05, training=True)


@engines
def test_full_compute_that_does_not_repeat_itself_is_refused(engine: Any) -> None:
    with pytest.raises(CalibrationError, match=r"full compute does not repeat itself.*dropout"):
        certify(planner(Noisy(), engine))


# -- 10. contexts without rows -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (lambda: contexts(32).flatten(), r"one dimension.*context\[None\]"),
        (lambda: [{"rows": torch.randn(4)} for _ in range(300)], r"one dimension"),
        (
            lambda: [{"rows": torch.randn(2, 4)} for _ in range(300)],
            r"list of 300 contexts.*gather",
        ),
        (lambda: [torch.randn(2, 4) for _ in range(300)], r"list of 300 contexts.*gather"),
        (lambda: np.zeros((300, 4), np.float32), r"numpy array.*torch\.from_numpy"),
        (lambda: {"rows": contexts(80), "more": np.zeros((80, 2))}, r"numpy array of 80 rows"),
    ],
)
def test_contexts_without_rows_are_refused(calls: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        certify(planner(Pooling()), calls())


def test_a_call_without_rows_is_refused_by_the_cached_planner() -> None:
    own = planner(Pooling())
    fast = cache(own, certify(own))
    with pytest.raises(CertificateError, match=r"context\[None\]"):
        fast(contexts(1)[0])
    assert fast(contexts(1), noise=own.draw_noise(1))[1].fallbacks == 0


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
