"""Fewer steps and reuse at a stride, against identities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from analytic import mixture_planner
from few_step_cases import few_steps
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from muninn.programs.spacing import spread_steps
from muninn_bench.measure.baselines import fixed_skip

SHAPE = (8, 2)


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("count", [2, 5, 12])
def test_reuse_at_a_stride_is_fewer_ddim_steps(kind: str, count: int) -> None:
    """A DDIM step with its prediction held composes exactly, whether epsilon or x0 is held."""
    planner = mixture_planner(ddim(Schedule.cosine(40), kind=kind), SHAPE)  # type: ignore[arg-type]
    noise = planner.draw_noise(seeds=range(6))
    fewer = few_steps(planner, count).sample(noise=noise)
    reused, record = Runtime(planner, fixed_skip(planner, count))(noise=noise)
    assert record.evaluations.tolist() == [count] * 6
    torch.testing.assert_close(reused, fewer, atol=2e-4, rtol=2e-4)
    held = Program(Forecast("sample", 0, look_back=False), Static(spread_steps(40, count)))
    torch.testing.assert_close(Runtime(planner, held)(noise=noise)[0], fewer, atol=2e-4, rtol=2e-4)


def test_all_steps_are_the_sampler_itself() -> None:
    upwards = euler([i / 10 for i in range(11)])
    for sampler in (ddim(Schedule.cosine(20), kind="sample", clip=1.0), euler(10), upwards):
        planner = mixture_planner(sampler, SHAPE)
        noise = planner.draw_noise(seeds=[0, 1])
        same = few_steps(planner, len(sampler)).sample(noise=noise)
        torch.testing.assert_close(same, planner.sample(noise=noise), atol=1e-5, rtol=1e-5)


def test_steps_are_spread_from_the_first_to_the_last() -> None:
    assert spread_steps(100, 2) == (0, 99)
    steps = spread_steps(100, 15)
    assert len(steps) == 15 and steps[0] == 0 and steps[-1] == 99
    assert np.ptp(np.diff(steps)) <= 1
    for count in (1, 101):
        with pytest.raises(InputError, match="between 2 and 100"):
            spread_steps(100, count)


def test_a_stochastic_sampler_has_no_few_step_twin() -> None:
    planner = mixture_planner(ddpm(Schedule.cosine(20), kind="sample"), SHAPE)
    with pytest.raises(InputError, match="deterministic sampler"):
        few_steps(planner, 5)
