"""What a run promises: full compute unchanged, rows independent, limits held, any dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from analytic import Counting, mixture_denoiser, mixture_planner, polynomial_planner
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import ORDERS, Forecast
from muninn.programs.plan import Adaptive, Everywhere, Plan, Program, Static
from runtime_cases import (
    ANCHORS,
    NAMES,
    SCHEDULE,
    SHAPE,
    STEPS,
    contexts,
    gate,
    own,
    pin_start,
    programs,
    samplers,
)

# -- full compute ------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [None, "before", "after"])
@pytest.mark.parametrize("name", NAMES)
def test_a_full_plan_is_bit_identical_to_the_plain_sampler(name: str, when: Any) -> None:
    condition = None if when is None else pin_start
    planner = mixture_planner(
        samplers()[name], SHAPE, condition=condition, condition_when=when or "before"
    )
    context, noise = contexts(3), planner.draw_noise(seeds=[0, 1, 2])
    expected = planner.sample(context, noise=noise)
    for forecast in (Forecast(own(planner.sampler), 0, False), Forecast("epsilon", 2)):
        planned, record = Runtime(planner, Program(forecast, Everywhere()))(context, noise=noise)
        assert torch.equal(planned, expected)
        assert record.evaluated.all() and record.evaluations.tolist() == [STEPS] * 3
        assert record.estimate.tolist() == [0.0] * 3 and record.fallback == (None,) * 3


@pytest.mark.parametrize("name", NAMES)
def test_one_generator_draws_as_the_plain_sampler_does(name: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE)
    runtime = Runtime(planner, Program.full(own(planner.sampler)))
    planned, _ = runtime(contexts(2), generator=torch.Generator().manual_seed(5))
    expected = planner.sample(contexts(2), generator=torch.Generator().manual_seed(5))
    assert torch.equal(planned, expected)


@pytest.mark.parametrize("name", ["ddpm", "stochastic ddim"])
def test_a_cached_run_consumes_the_draws_of_the_plain_sampler(name: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE)
    program = Program(Forecast("sample", 1), Static(ANCHORS))
    first, second = (torch.Generator().manual_seed(5) for _ in range(2))
    Runtime(planner, program)(contexts(2), generator=first)
    planner.sample(contexts(2), generator=second)
    assert torch.equal(first.get_state(), second.get_state())


# -- rows of a batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_equals_the_loop_over_its_elements(name: str, kind: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE, condition=pin_start)
    runtime = Runtime(planner, programs(planner.sampler)[kind])
    seeds, context = list(range(6)), contexts(6)
    together, record = runtime(context, noise=planner.draw_noise(seeds=seeds))
    for row, seed in enumerate(seeds):
        alone, own_record = runtime(context[row : row + 1], noise=planner.draw_noise(seeds=[seed]))
        assert record.evaluated[row].tolist() == own_record.evaluated[0].tolist()
        assert record.evaluations[row] == own_record.evaluations[0]
        assert record.estimate[row] == pytest.approx(own_record.estimate[0], rel=1e-3, abs=1e-6)
        # float32 sums of another length; rows differ by 1
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0.0, atol=1e-4)
    if kind.startswith("adaptive") and "hold" not in kind:
        assert len({tuple(row) for row in record.evaluated.tolist()}) > 1  # rows decide alone


def test_only_the_rows_that_are_due_are_evaluated() -> None:
    sampler = samplers()["ddim"]
    counting = Counting(mixture_denoiser(sampler, SHAPE))
    planner = Planner(counting, sampler, SHAPE)
    _, record = Runtime(planner, gate(sampler))(
        contexts(6), noise=planner.draw_noise(seeds=range(6))
    )
    assert sum(counting.rows) == record.evaluations.sum() == record.evaluated.sum()
    assert min(counting.rows) < 6 and max(counting.rows) == 6
    steps = [float(step.timestep) for step in sampler.steps]
    asked = {time: rows for time, rows in zip(counting.timesteps, counting.rows, strict=True)}
    assert len(asked) == len(counting.rows)  # one forward a step, whatever the histories
    for index, time in enumerate(steps):
        assert asked.get(time, 0) == record.evaluated[:, index].sum()


# -- limits ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    threshold=st.sampled_from([0.0, 1e-4, 1e-2, 1.0, 1e6]),
    dense=st.integers(1, 6),
    longest=st.integers(1, 30),
    spare=st.integers(1, 25),
    order=st.sampled_from(ORDERS),
    steps=st.integers(1, 25),
)
def test_limits_on_evaluations_hold_and_the_last_step_is_among_them(
    threshold: float, dense: int, longest: int, spare: int, order: int, steps: int
) -> None:
    planner = polynomial_planner(ddim(SCHEDULE, steps, kind="sample"), 3, SHAPE)
    plan = Adaptive(threshold, dense, longest, dense + spare)
    context = torch.tensor([1.0, 0.1, 5.0])
    _, record = Runtime(planner, Program(Forecast("sample", order), plan))(
        context, noise=planner.draw_noise(seeds=[0, 1, 2])
    )
    assert (record.evaluations <= plan.cap).all()
    assert (record.evaluations == record.evaluated.sum(axis=1)).all()
    assert record.evaluated[:, -1].all() and record.evaluated[:, :dense].all()
    for row in range(3):
        gaps = np.diff(np.flatnonzero(record.evaluated[row]))
        if record.evaluations[row] < plan.cap:
            assert (gaps <= longest).all()
    if threshold == 0.0 and plan.cap >= steps:
        assert record.evaluated.all()


def test_the_last_step_is_evaluated_even_if_the_plan_does_not_name_it() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    for anchors in ((0,), (0, 5)):
        _, record = Runtime(planner, Program(Forecast("sample", 1), Static(anchors)))()
        assert np.flatnonzero(record.evaluated[0]).tolist() == [*anchors, STEPS - 1]


def test_a_plan_made_for_a_longer_sampler_is_refused() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    with pytest.raises(InputError, match="anchor 400 but the sampler's last step"):
        Runtime(planner, Program(Forecast("sample", 1), Static((0, 5, 400))))


class Stuck(Plan):
    """A plan that names a step already done."""

    fixed = False

    def next(self, step: int, steps: int, used: int, growth: object, scale: float) -> int:
        return 0

    def to_json(self) -> dict[str, object]:
        return {}


def test_a_plan_that_never_moves_on_evaluates_everywhere() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    _, record = Runtime(planner, Program(Forecast("sample", 1), Stuck()))()
    assert record.evaluated.all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_gate_forecasts_only_from_the_history_that_its_order_needs(order: int) -> None:
    planner = polynomial_planner(samplers()["ddim"], 0, SHAPE)  # constant: nothing to evaluate
    program = Program(Forecast("sample", order), Adaptive(1e6, dense=1))
    _, record = Runtime(planner, program)()
    needed = max(order + 1, 2)  # order 0 compares two evaluations
    assert np.flatnonzero(record.evaluated[0]).tolist() == [*range(needed), STEPS - 1]


# -- dtypes and shapes -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_planners_of_other_precisions_run_and_keep_their_dtype(
    name: str, dtype: torch.dtype
) -> None:
    planner = mixture_planner(samplers()[name], SHAPE, dtype=dtype, condition=pin_start)
    noise, context = planner.draw_noise(seeds=[0, 1]), contexts(2).to(dtype)
    full = planner.sample(context, noise=noise)
    planned, _ = Runtime(planner, Program.full(own(planner.sampler)))(context, noise=noise)
    assert torch.equal(planned, full) and planned.dtype == full.dtype == dtype
    for kind, program in programs(planner.sampler).items():
        planned, record = Runtime(planner, program)(context, noise=noise)
        assert planned.dtype == dtype and torch.isfinite(planned).all(), kind
        assert record.fallbacks == 0 and (record.evaluations < STEPS).all()


def test_a_network_of_lower_precision_serves_a_planner_of_higher() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)

    def half(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return planner.denoiser(x.half(), timestep, context)

    mixed, noise = replace(planner, denoiser=half), planner.draw_noise(seeds=[0, 1])
    full = mixed.sample(noise=noise)
    assert full.dtype == torch.float32
    assert torch.equal(Runtime(mixed, Program.full("sample"))(noise=noise)[0], full)
    for quantity in ("sample", "epsilon", "v"):
        program = Program(Forecast(quantity, 1), Static(ANCHORS))
        planned, record = Runtime(mixed, program)(noise=noise)
        assert planned.dtype == torch.float32 and record.fallbacks == 0


def test_a_sampler_of_one_step_is_evaluated_once() -> None:
    one = {
        "ddpm": ddpm(SCHEDULE, 1, kind="sample", spacing="trailing"),
        "ddim": ddim(SCHEDULE, 1, kind="sample", spacing="trailing"),
        "euler": euler(1),
    }
    for sampler in one.values():
        planner = mixture_planner(sampler, SHAPE)
        noise = planner.draw_noise(seeds=[0, 1])
        for plan in (Everywhere(), Static((0,)), Adaptive(1e6)):
            program = Program(Forecast(own(sampler), 2), plan)
            planned, record = Runtime(planner, program)(noise=noise)
            assert torch.equal(planned, planner.sample(noise=noise))
            assert record.evaluated.tolist() == [[True], [True]]
