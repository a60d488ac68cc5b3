"""A collapsed gap equals stepping through it."""

from __future__ import annotations

import pytest
import torch

import muninn.engines.gap
from muninn.engines.gap import run_gap
from muninn.model.planner import Noise
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import Forecast, Forecaster

SAMPLERS = {
    "ddim": ddim(Schedule.cosine(30), kind="sample"),
    "ddim epsilon": ddim(Schedule.linear(30), kind="epsilon"),
    "ddim clipped": ddim(Schedule.cosine(30), kind="sample", clip=0.7),
    "ddim clipped, epsilon kept": ddim(Schedule.cosine(30), clip=0.7, keep_epsilon=True),
    "ddim stochastic": ddim(Schedule.cosine(30), kind="v", eta=0.5),
    "ddpm": ddpm(Schedule.cosine(30), kind="sample", clip=0.7),
    "euler down": euler(30),
    "euler up": euler([i / 30 for i in range(31)]),
}


def gap(sampler: Sampler, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        return torch.randn(3, 5, 2, generator=generator)

    forecaster = Forecaster(Forecast(kind, 2), sampler)  # type: ignore[arg-type]
    weights = forecaster.extrapolate((4, 7, 12), 20)
    noise = Noise(draw(), {step: draw() for step in range(30)})
    return run_gap(
        sampler,
        draw(),
        weights,
        [draw(), draw(), draw()],
        13,
        kind,
        noise,
        slice(None),  # type: ignore[arg-type]
        muninn.engines.gap.column_cache(),
    )


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_collapsed_gap_equals_stepping_through_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = SAMPLERS[name]
    collapsed = {kind: gap(sampler, kind) for kind in sampler.kinds}
    monkeypatch.setattr(muninn.engines.gap, "LARGEST", 0)
    for kind, value in collapsed.items():
        torch.testing.assert_close(value, gap(sampler, kind), atol=2e-5, rtol=2e-5)


def test_a_gap_collapses_exactly_where_steps_are_affine_in_the_state() -> None:
    def collapses(name: str, kind: str) -> bool:
        return SAMPLERS[name].collapse(5, 9, kind) is not None  # type: ignore[arg-type]

    assert collapses("ddim", "epsilon") and collapses("ddim clipped", "sample")
    assert collapses("euler down", "velocity")
    assert not collapses("ddim clipped", "epsilon")  # its clipping depends on the state
    assert not collapses("ddim clipped, epsilon kept", "sample")
    assert not collapses("ddpm", "sample") and not collapses("ddim stochastic", "v")
