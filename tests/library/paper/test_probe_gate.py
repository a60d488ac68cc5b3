"""The probe as a gate over our forecasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import paper_cases as cases
from muninn.engines.runtime import Runtime
from muninn.paper.gates import Accumulated, Threshold
from muninn.paper.probe_gate import ProbeGatedRuntime
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static

FORECASTS = [
    Forecast("sample", order, look_back) for order in (0, 1, 2) for look_back in (False, True)
]


@pytest.mark.parametrize("forecast", FORECASTS, ids=str)
def test_a_gate_that_never_reuses_is_full_compute(forecast: Forecast) -> None:
    planner = cases.planner(kind="sample")
    runtime = ProbeGatedRuntime(planner, forecast, cases.probe(planner), Threshold(-1.0))
    noise = planner.draw_noise(seeds=range(3))
    plans, record = runtime(noise=noise)
    torch.testing.assert_close(plans, planner.sample(noise=noise), atol=1e-5, rtol=0.0)
    assert (record.evaluations == cases.STEPS).all()


@pytest.mark.parametrize("forecast", FORECASTS, ids=str)
@pytest.mark.parametrize("name", ["ddim", "ddpm"])
def test_equals_the_static_plan_with_the_same_evaluations(name: str, forecast: Forecast) -> None:
    """Which steps are evaluated is the gate's only say: everything else is our runtime."""
    planner = cases.planner(name, "sample", gain=2.0)
    runtime = ProbeGatedRuntime(planner, forecast, cases.probe(planner), Accumulated(0.3))
    noise = planner.draw_noise(seeds=range(5))
    plans, record = runtime(noise=noise)
    assert (record.evaluations < cases.STEPS).all()
    for row in range(5):
        anchors = tuple(np.flatnonzero(record.evaluated[row]).tolist())
        static = Runtime(planner, Program(forecast, Static(anchors)))
        expected, _ = static(noise=noise.select(torch.tensor([row])))
        assert torch.allclose(plans[row], expected[0], atol=1e-5)


def test_stem_at_every_step_core_at_evaluations() -> None:
    planner = cases.planner(kind="sample", gain=2.0)
    wave: Any = planner.denoiser
    runtime = ProbeGatedRuntime(planner, FORECASTS[3], cases.probe(planner), Accumulated(0.3))
    wave.counts.update(stem=0, core=0)
    _, record = runtime(noise=planner.draw_noise(seeds=range(4)))
    assert wave.counts == {"stem": 4 * cases.STEPS, "core": int(record.evaluations.sum())}
    assert record.evaluated[:, [0, -1]].all()
