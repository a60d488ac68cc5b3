"""A network deployed with a certificate, and what its calls are to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from call_level_cases import certificate_for
from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.certificate import Certificate
from muninn.certify.examine import examine
from muninn.engines.choose import runtime_for
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from replacing_cases import network
from runtime_cases import ANCHORS, SHAPE, STEPS, samplers

SAMPLER = samplers()["ddim"]
PROGRAM = Program(Forecast("sample", 1), Static(ANCHORS))
WORDS = "network: its weights, settings or mode are no longer those of the certificate"


def deployed(denoiser: Any, engine: Any = "eager") -> CachedPlanner:
    planner = Planner(denoiser, SAMPLER, SHAPE, engine=engine)
    noise = planner.draw_noise(seeds=range(8))
    questions = examine(replace(planner, engine="eager"), None, noise, 1).questions
    certificate = replace(certificate_for(planner, PROGRAM), questions=questions)
    return cache(planner, certificate, on_mismatch="full")


def require_cached(fast: CachedPlanner) -> None:
    noise = fast.planner.draw_noise(seeds=[1, 2])
    trajectory, record = fast(noise=noise)
    expected, _ = runtime_for(replace(fast.planner, engine="eager"), PROGRAM)(noise=noise)
    torch.testing.assert_close(trajectory, expected)
    assert record.evaluations.tolist() == [len(ANCHORS)] * 2
    assert record.fallbacks == 0 and record.bound is not None and fast.reason is None


def require_full(fast: CachedPlanner, words: str = WORDS) -> None:
    noise = fast.planner.draw_noise(seeds=[1, 2])
    trajectory, record = fast(noise=noise)
    assert torch.equal(trajectory, fast.planner.sample(noise=noise))
    assert record.evaluations.tolist() == [STEPS] * 2
    assert record.bound is None and record.rank is None
    assert all(str(reason).startswith(words) for reason in (*record.fallback, fast.reason))


def count_prints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The list to which every network is added that a deployed planner identifies."""
    made: list[Any] = []

    identify = CachedPlanner._identify

    def counted(fast: CachedPlanner, certificate: Certificate) -> list[str]:
        if hasattr(fast, "_runtime"):  # not when it is made
            made.append(fast.planner.denoiser)
        return identify(fast, certificate)

    monkeypatch.setattr(CachedPlanner, "_identify", counted)
    return made


def scaled(layers: nn.Sequential) -> None:
    with torch.no_grad():
        layers[2].weight.mul_(30.0)


def assigned(layers: nn.Sequential) -> None:
    layers.load_state_dict(network(1).state_dict(), assign=True)
