"""A cached run is the method's algorithm, exact on polynomials, with the estimate it claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import mixture_planner, polynomial_planner
from muninn.context import select
from muninn.engines.runtime import Runtime
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Kind, Sampler
from muninn.programs.forecast import ORDERS, Forecast, error_weights, smooth_variable
from muninn.programs.plan import Program, Static
from runtime_cases import (
    ANCHORS,
    NAMES,
    SHAPE,
    SHORT_GAPS,
    contexts,
    own,
    pinned_copy,
    samplers,
)

# -- the algorithm, written again --------------------------------------------------------------


def plain_reference(
    planner: Planner, forecast: Forecast, anchors: tuple[int, ...], noise: Noise, context: Any
) -> Tensor:
    """Section 4 of the method for one trajectory, step by step, nothing shared or cached."""
    sampler, variable = planner.sampler, smooth_variable(planner.sampler)

    def through(nodes: list[int], values: list[Tensor], step: int) -> Tensor:
        total = torch.zeros_like(values[0])
        for i, value in zip(nodes, values, strict=True):
            weight = 1.0
            for j in nodes:
                if j != i:
                    weight *= (variable[step] - variable[j]) / (variable[i] - variable[j])
            total = total + weight * value
        return total

    def move(x: Tensor, prediction: Tensor, step: int, kind: Kind) -> Tensor:
        x = sampler.step(x, prediction, step, noise.at(step, slice(None)), kind)
        return x if planner.condition is None else planner.condition(x, context)

    nodes: list[int] = []
    values: list[Tensor] = []
    x = planner.start(noise, context)
    after = x
    for anchor in anchors:
        known = slice(-(forecast.order + 1), None)
        gap = range(nodes[-1] + 1, anchor) if nodes else range(0)
        x = after
        for step in gap:
            x = move(x, through(nodes[known], values[known], step), step, forecast.quantity)
        prediction = planner.denoiser(x, planner.timestep(anchor, 1), context)
        value = sampler.convert(x, prediction, anchor, forecast.quantity)
        if forecast.look_back and len(gap):
            x = after
            for step in gap:
                weighed = through([*nodes[known], anchor], [*values[known], value], step)
                x = move(x, weighed, step, forecast.quantity)
            after = move(x, value, anchor, forecast.quantity)
        else:
            after = move(x, prediction, anchor, sampler.kind)
        nodes.append(anchor)
        values.append(value)
    return after


@pytest.mark.parametrize("look_back", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_cached_run_is_the_algorithm_of_the_method(
    name: str, order: int, look_back: bool
) -> None:
    planner = mixture_planner(
        samplers()[name], SHAPE, condition=pinned_copy, dtype=torch.float64, deviation=0.5
    )
    context, noise = contexts(3).double(), planner.draw_noise(seeds=[3, 4, 5])
    full = planner.sample(context, noise=noise)
    for quantity in planner.sampler.kinds:
        forecast = Forecast(quantity, order, look_back)
        planned, record = Runtime(planner, Program(forecast, Static(SHORT_GAPS)))(
            context, noise=noise
        )
        assert np.flatnonzero(record.evaluated[0]).tolist() == list(SHORT_GAPS)
        assert_equals_reference(planner, forecast, SHORT_GAPS, noise, context, planned)
        assert not torch.allclose(planned, full, rtol=0.0, atol=2e-5)  # forecasts matter


def assert_equals_reference(
    planner: Planner,
    forecast: Forecast,
    anchors: tuple[int, ...],
    noise: Noise,
    context: Any,
    planned: Tensor,
) -> None:
    for row in range(len(planned)):
        one = torch.tensor([row])
        expected = plain_reference(
            planner, forecast, anchors, noise.select(one), select(context, one)
        )
        # history and weights of a run are float32; a step late in a chain amplifies 1e-7
        atol = 2e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(planned[one], expected, rtol=0.0, atol=atol)


# -- exactness on polynomials ------------------------------------------------------------------


def stopped_early(sampler: Sampler) -> Sampler:
    """The first 20 steps: at the clean end a forecast of x0 leaves no trace in the state."""
    return Sampler(
        sampler.name,
        sampler.kind,
        sampler.steps[:20],
        flow=sampler.flow,
        clip=sampler.clip,
        keep_epsilon=sampler.keep_epsilon,
        velocity_sign=sampler.velocity_sign,
    )


def polynomial_deviation(
    sampler: Sampler, degree: int, order: int, look_back: bool, quantity: Kind
) -> float:
    """Largest difference between a cached and a full plan of a polynomial denoiser."""
    planner = polynomial_planner(
        stopped_early(sampler), degree, SHAPE, quantity=quantity, dtype=torch.float64
    )
    context, noise = torch.tensor([1.0, -0.5]).double(), planner.draw_noise(seeds=[0, 1])
    anchors = (0, 1, 2, 3, 5, 8, 11, 14, 16, 19)
    program = Program(Forecast(quantity, order, look_back), Static(anchors))
    planned, record = Runtime(planner, program)(context, noise=noise)
    assert record.evaluations.tolist() == [len(anchors)] * 2
    return float((planned - planner.sample(context, noise=noise)).abs().max())


def quantities(name: str) -> tuple[Kind, ...]:
    """All of a sampler's; a flow starts at pure noise, where epsilon says nothing of x0."""
    kinds = samplers()[name].kinds
    return kinds[1:] if "euler" in name else kinds


# Values of size 3 in float32, weighed by up to 20 (order 3), over 20 steps.
ROUNDING = 5e-6


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_polynomial_of_the_forecasts_order_is_planned_as_in_full(name: str, order: int) -> None:
    for quantity in quantities(name):
        exact = polynomial_deviation(samplers()[name], order, order, False, quantity)
        assert exact < ROUNDING, quantity


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_look_back_is_exact_one_degree_beyond_the_forecast(name: str, order: int) -> None:
    for quantity in quantities(name):
        exact = polynomial_deviation(samplers()[name], order + 1, order, True, quantity)
        plain = polynomial_deviation(samplers()[name], order + 1, order, False, quantity)
        assert exact < ROUNDING < plain, quantity
        assert plain > 100 * exact, quantity


@pytest.mark.parametrize("shape", [(1, 2), (5,), (1,), (3, 2, 2)])
@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_trajectories_of_any_shape_are_planned(name: str, shape: tuple[int, ...]) -> None:
    planner = mixture_planner(samplers()[name], shape)
    noise = planner.draw_noise(seeds=[0, 1, 2])
    full = planner.sample(noise=noise)
    assert full.shape == (3, *shape)
    planned, _ = Runtime(planner, Program.full(own(planner.sampler)))(noise=noise)
    assert torch.equal(planned, full)
    for look_back in (True, False):
        forecast = Forecast(own(planner.sampler), 1, look_back)
        planned, _ = Runtime(planner, Program(forecast, Static(SHORT_GAPS)))(noise=noise)
        assert not torch.equal(planned, full)
        assert_equals_reference(planner, forecast, SHORT_GAPS, noise, None, planned)


# -- the estimate ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_the_estimate_is_the_accumulated_distance_between_two_orders(name: str, order: int) -> None:
    planner = mixture_planner(samplers()[name], SHAPE, deviation=0.6)
    sampler, quantity = planner.sampler, own(planner.sampler)
    outputs: list[Tensor] = []

    def remembering(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        outputs.append(planner.denoiser(x, timestep, context))
        return outputs[-1]

    program = Program(Forecast(quantity, order), Static(ANCHORS))
    runtime = Runtime(replace(planner, denoiser=remembering), program)
    _, record = runtime(noise=planner.draw_noise(seeds=[9]))
    variable, weight = smooth_variable(sampler), error_weights(sampler, quantity)
    total = 0.0
    for count in range(2, len(ANCHORS)):  # one evaluation gives no estimate
        degree = min(max(order, 1), count - 1)
        nodes = list(ANCHORS[count - degree - 1 : count])
        values = torch.stack(outputs[count - degree - 1 : count]).double().numpy()
        for step in range(ANCHORS[count - 1] + 1, ANCHORS[count]):
            high = np.vander(variable[[step]], degree + 1) @ np.linalg.solve(
                np.vander(variable[nodes], degree + 1), values.reshape(degree + 1, -1)
            )
            low = np.vander(variable[[step]], degree) @ np.linalg.solve(
                np.vander(variable[nodes[1:]], degree), values[1:].reshape(degree, -1)
            )
            total += weight[step] * np.linalg.norm(high - low) / SHAPE[0] ** 0.5
    assert total > 0
    # float32 differences of nearly equal predictions
    assert record.estimate[0] == pytest.approx(total, rel=1e-3)
