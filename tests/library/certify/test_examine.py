"""What a certificate takes for granted is examined before a planner is calibrated."""

from __future__ import annotations

import functools
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
    Small,
    certify,
    contexts,
    planner,
)
from muninn.certify.cached import cache
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.errors import CalibrationError, CertificateError, InputError
from muninn.model.planner import Planner

engines = pytest.mark.parametrize("engine", ENGINES)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


# -- full compute on other engines ----------------------------------------------------------


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


# -- rows that influence each other ---------------------------------------------------------


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


# -- NaN in a calibration call --------------------------------------------------------------


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


# -- full compute that cannot be repeated ---------------------------------------------------


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


def test_train_mode_is_named_as_such() -> None:
    network = Small()
    own: Planner = planner(network)
    fast = cache(own, certify(own))
    network.train()
    with pytest.raises(CertificateError, match="a Small is in train mode"):
        fast(contexts(1), noise=own.draw_noise(1))
    assert own.shape == SHAPE


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


# -- contexts without rows -----------------------------------------------------------------


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


class Choosy(nn.Module):
    """Refuses a context that is no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        if not bool(((context == 0.0) | (context == 1.0)).all()):
            raise ValueError("a mask holds zeros and ones")
        found: Tensor = self.inner(x, timestep, context[:, :4])
        return found


def test_a_network_that_refuses_a_stand_in_has_no_questions() -> None:
    masks = torch.zeros(72, 200_000, device=DEVICE)
    masks[:, ::2] = 1.0
    issued = certify(planner(Choosy()), masks, batch_size=8)
    assert issued.questions is None and "stand-in" in str(issued.unasked)
