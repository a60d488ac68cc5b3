"""Taylor series in the step index."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import paper_cases as cases
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.programs.anchors import spread_steps
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from muninn_bench.measure.taylor import TaylorPlanner


def test_every_step_is_full_compute() -> None:
    planner = cases.planner(kind="sample")
    noise = planner.draw_noise(seeds=range(2))
    plans = TaylorPlanner(planner, range(cases.STEPS), 2).sample(noise=noise)
    assert torch.equal(plans, planner.sample(noise=noise))


def test_order_zero_holds_the_network_output() -> None:
    planner = cases.planner(kind="sample")
    noise = planner.draw_noise(seeds=range(2))
    static = Static(spread_steps(cases.STEPS, 6))
    held, _ = Runtime(planner, Program(Forecast("sample", 0, False), static))(noise=noise)
    assert torch.allclose(
        TaylorPlanner(planner, static.anchors, 0).sample(noise=noise), held, atol=1e-6
    )


def test_first_order_is_exact_on_predictions_linear_in_the_step() -> None:
    table = cases.sampler(kind="sample", clip=None)
    calls = 0

    def line(x: Tensor, timestep: Tensor, context: object) -> Tensor:
        nonlocal calls
        calls += 1
        step = (cases.STEPS - 1 - timestep.float())[:, None, None]
        return 0.02 * step.expand_as(x) - 0.1

    planner = Planner(line, table, cases.SHAPE)
    noise = planner.draw_noise(seeds=range(2))
    full = planner.sample(noise=noise)
    calls = 0
    # From the second evaluation on the line is known; before it the series can only hold.
    taylor = TaylorPlanner(planner, (0, 1, 10, cases.STEPS - 1), 1)
    assert torch.allclose(taylor.sample(noise=noise), full, atol=1e-5)
    assert calls == 4


def test_a_bad_order_and_missing_ends_are_refused() -> None:
    with pytest.raises(InputError, match="order"):
        TaylorPlanner(cases.planner(), (0, cases.STEPS - 1), -1)
    for anchors in ((), (0, 5), (1, cases.STEPS - 1)):
        with pytest.raises(InputError, match="anchors go from step 0"):
            TaylorPlanner(cases.planner(), anchors)
