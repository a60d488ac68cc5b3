"""Forecasts are exact on polynomials of their order, and their error estimate is what it says."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import (
    ORDERS,
    AnyForecast,
    Forecast,
    error_weights,
    interpolation_weights,
    smooth_variable,
    weighted_sum,
)


def samplers() -> list[Sampler]:
    schedule = Schedule.cosine(100)
    up = np.linspace(0.0, 1.0, 26).tolist()
    return [ddim(schedule, 25), ddpm(schedule, 25), euler(25), euler(up)]


def polynomial(coefficients: np.ndarray, variable: np.ndarray) -> np.ndarray:
    """Values (len(variable), features) of polynomials (degree + 1, features)."""
    return np.vander(variable, len(coefficients), increasing=True) @ coefficients


def forecast(weights: np.ndarray, coefficients: np.ndarray, places: np.ndarray) -> np.ndarray:
    """What a run makes of the weights and a polynomial known at places, in float64."""
    values = [torch.from_numpy(value) for value in polynomial(coefficients, places)]
    return np.stack([weighted_sum(tuple(row), values).numpy() for row in weights])


def rounding(weights: np.ndarray, coefficients: np.ndarray) -> float:
    """Float64 rounding of the terms; weights grow with the distance and with crowded nodes."""
    return float(1e-13 * np.abs(weights).sum(axis=1).max() * np.abs(coefficients).sum() * 4)


histories = st.sets(st.integers(0, 18), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))


# -- interpolation -----------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    nodes=st.lists(st.integers(-20, 20), min_size=1, max_size=5, unique=True),
    targets=st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=4),
    seed=st.integers(0, 999),
)
def test_weights_reproduce_every_polynomial_their_nodes_determine(
    nodes: list[int], targets: list[float], seed: int
) -> None:
    places, wanted = np.array(nodes) / 10.0, np.array(targets)
    coefficients = np.random.default_rng(seed).normal(size=(len(nodes), 1))
    weights = interpolation_weights(places, wanted)
    expected = polynomial(coefficients, wanted)
    found = weights @ polynomial(coefficients, places)
    # rounding is amplified by the weights, up to 1e4 for crowded nodes
    atol = 1e-12 * np.abs(weights).sum() * np.abs(coefficients).sum() * 16
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=atol)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-13 * np.abs(weights).sum())


@settings(max_examples=60)
@given(
    nodes=histories,
    order=st.sampled_from(ORDERS),
    place=st.integers(0, 3),
    until=st.integers(20, 24),
    seed=st.integers(0, 999),
)
def test_a_forecast_is_exact_on_polynomials_of_its_order(
    nodes: tuple[int, ...], order: int, place: int, until: int, seed: int
) -> None:
    sampler = samplers()[place]
    forecaster = Forecast("sample", order).bind(sampler)
    variable = smooth_variable(sampler)
    degree = min(order, len(nodes) - 1)  # a short history determines no more
    coefficients = np.random.default_rng(seed).normal(size=(degree + 1, 3))
    weights = np.array(forecaster.extrapolate(nodes, until))
    assert weights.shape == (until - nodes[-1] - 1, min(order + 1, len(nodes)))
    found = forecast(weights, coefficients, variable[list(nodes)])
    expected = polynomial(coefficients, variable[nodes[-1] + 1 : until])
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=rounding(weights, coefficients))


@settings(max_examples=60)
@given(
    nodes=histories,
    order=st.sampled_from(ORDERS),
    place=st.integers(0, 3),
    new=st.integers(20, 24),
    seed=st.integers(0, 999),
)
def test_an_interpolation_is_exact_on_polynomials_of_one_order_more(
    nodes: tuple[int, ...], order: int, place: int, new: int, seed: int
) -> None:
    sampler = samplers()[place]
    forecaster = Forecast("sample", order).bind(sampler)
    variable = smooth_variable(sampler)
    degree = min(order + 1, len(nodes))
    coefficients = np.random.default_rng(seed).normal(size=(degree + 1, 3))
    weights = np.array(forecaster.interpolate(nodes, new))
    assert weights.shape == (new - nodes[-1] - 1, min(order + 2, len(nodes) + 1))
    found = forecast(weights, coefficients, variable[[*nodes, new]])
    expected = polynomial(coefficients, variable[nodes[-1] + 1 : new])
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=rounding(weights, coefficients))


@pytest.mark.parametrize("order", ORDERS)
def test_a_forecast_is_not_exact_one_order_further(order: int) -> None:
    sampler = samplers()[0]
    forecaster, variable = Forecast("sample", order).bind(sampler), smooth_variable(sampler)
    nodes = (0, 3, 6, 9, 12)
    weights = np.array(forecaster.extrapolate(nodes, 18))
    known = variable[list(nodes)][-order - 1 :] ** (order + 1)
    error = weights @ known - variable[13:18] ** (order + 1)
    assert np.abs(error).min() > 1e-3


def test_order_zero_holds_the_last_value() -> None:
    forecaster = Forecast("sample", 0).bind(samplers()[0])
    assert forecaster.extrapolate((2, 5), 9) == ((1.0,),) * 3
    values = [torch.tensor([4.0]), torch.tensor([7.0])]
    assert weighted_sum((1.0,), values).tolist() == [7.0]


def test_a_history_of_one_is_held_at_any_order() -> None:
    for order in ORDERS:
        forecaster = Forecast("sample", order).bind(samplers()[0])
        assert forecaster.extrapolate((0,), 4) == ((1.0,),) * 3


def test_weighing_leaves_the_history_alone() -> None:
    values = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    total = weighted_sum((2.0, -1.0), values)
    assert total.tolist() == [-1.0, 0.0]
    total.fill_(9.0)
    weighted_sum((1.0,), values).fill_(9.0)
    assert [value.tolist() for value in values] == [[1.0, 2.0], [3.0, 4.0]]


def test_memory_keeps_what_the_order_and_its_estimate_need() -> None:
    kept = [Forecast("sample", order).bind(samplers()[0]).memory for order in ORDERS]
    assert kept == [2, 2, 3, 4]


# -- the smooth variable and the weights of errors ---------------------------------------------


def test_the_smooth_variable_is_the_angle_of_a_diffusion_and_the_noise_level_of_a_flow() -> None:
    schedule = Schedule.cosine(100)
    angle = np.arccos(np.sqrt(schedule.alpha_bar))[::-1]
    np.testing.assert_allclose(smooth_variable(ddim(schedule)), angle, atol=1e-12)
    np.testing.assert_allclose(smooth_variable(ddpm(schedule)), angle, atol=1e-12)
    level = 1.0 - np.arange(8) / 8
    np.testing.assert_allclose(smooth_variable(euler(8)), level, atol=1e-15)
    upward = euler((np.arange(9) / 8).tolist())
    np.testing.assert_allclose(smooth_variable(upward), level, atol=1e-15)


@pytest.mark.parametrize("make", [ddim, ddpm], ids=["ddim", "ddpm"])
@pytest.mark.parametrize("steps", [100, 20])
def test_error_weights_of_a_diffusion_are_the_closed_forms(make: Any, steps: int) -> None:
    schedule = Schedule.cosine(100)
    sampler = make(schedule, steps)
    alpha_bar = np.array([schedule.alpha_bar[int(step.timestep)] for step in sampler.steps])
    ratio = np.sqrt((1 - alpha_bar) / alpha_bar)  # sigma_t of the method
    after = np.append(ratio[1:], 0.0)
    expected: dict[Kind, np.ndarray] = {
        "epsilon": np.abs(ratio - after),
        "sample": 1.0 - after / ratio,
        "v": np.sqrt(alpha_bar) * np.abs(ratio - after),
    }
    for quantity, weights in expected.items():
        np.testing.assert_allclose(error_weights(sampler, quantity), weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("grid", [[1.0, 0.7, 0.2, 0.0], [0.0, 0.4, 0.5, 1.0]])
def test_error_weights_of_a_velocity_are_the_time_steps(grid: list[float]) -> None:
    expected = np.abs(np.diff(grid))
    np.testing.assert_allclose(error_weights(euler(grid), "velocity"), expected, rtol=1e-12)


# -- the embedded estimate ---------------------------------------------------------------------


def forecast_of_degree(
    degree: int, variable: np.ndarray, nodes: tuple[int, ...], values: np.ndarray, step: int
) -> np.ndarray:
    """The polynomial of a degree through the newest evaluations, solved as a linear system."""
    used = list(nodes[-(degree + 1) :])
    system = np.vander(variable[used], len(used), increasing=True)
    return polynomial(np.linalg.solve(system, values[-len(used) :]), variable[[step]])[0]


@settings(max_examples=60)
@given(
    nodes=st.sets(st.integers(0, 15), min_size=2, max_size=4).map(lambda s: tuple(sorted(s))),
    order=st.sampled_from(ORDERS),
    place=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_growth_times_scale_accumulates_the_distance_between_two_orders(
    nodes: tuple[int, ...], order: int, place: int, seed: int
) -> None:
    sampler = samplers()[place]
    quantity: Kind = "velocity" if sampler.flow else "epsilon"
    forecaster = Forecast(quantity, order).bind(sampler)
    nodes = nodes[-forecaster.memory :]
    variable, weight = smooth_variable(sampler), error_weights(sampler, quantity)
    values = np.random.default_rng(seed).normal(size=(len(nodes), 6))
    # order 0 compares hold with linear; a short history compares what it has
    high = min(max(order, 1), len(nodes) - 1)
    direct = np.zeros(len(sampler))
    for step in range(nodes[-1] + 1, len(sampler)):
        apart = forecast_of_degree(high, variable, nodes, values, step) - forecast_of_degree(
            high - 1, variable, nodes, values, step
        )
        direct[step] = weight[step] * np.linalg.norm(apart)
    difference = forecaster.difference(nodes)
    assert difference is not None
    scale = np.linalg.norm(difference @ values[-len(difference) :])
    np.testing.assert_allclose(forecaster.growth(nodes) * scale, np.cumsum(direct), rtol=1e-8)


@pytest.mark.filterwarnings("error")
def test_growth_is_finite_for_every_quantity_even_from_pure_noise() -> None:
    for sampler in samplers():
        for quantity in sampler.kinds:
            growth = Forecast(quantity, 1).bind(sampler).growth((0, 1))
            assert np.isfinite(growth).all() and (np.diff(growth) >= 0).all(), quantity


def test_one_evaluation_gives_no_estimate() -> None:
    for order in ORDERS:
        assert Forecast("sample", order).bind(samplers()[0]).difference((0,)) is None


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [-1, 4, 0.5])
def test_an_unknown_order_is_refused_with_the_known_ones(order: Any) -> None:
    with pytest.raises(InputError, match=r"must be one of \(0, 1, 2, 3\), got"):
        Forecast("sample", order)


def test_a_quantity_that_the_sampler_does_not_speak_is_refused() -> None:
    wrong = [(samplers()[0], "velocity"), (samplers()[2], "v"), (samplers()[0], "mean")]
    for sampler, quantity in wrong:
        with pytest.raises(InputError, match=f"cannot forecast '{quantity}'; choose from"):
            Forecast(quantity).bind(sampler)  # type: ignore[arg-type]


def test_forecasts_survive_json() -> None:
    for order, look_back in itertools.product(ORDERS, [True, False]):
        forecast = Forecast("v", order, look_back)
        assert AnyForecast.from_json(forecast.to_json()) == forecast


def test_emphasis_weighs_the_estimate_towards_one_end() -> None:
    sampler = ddim(Schedule.cosine(100), 25)
    plain = Forecast("sample", 1).bind(sampler)
    late = Forecast("sample", 1).bind(sampler, -2.0)
    before, after = np.diff(plain.growth((0, 3))), np.diff(late.growth((0, 3)))
    ratio = after[4:] / before[4:]  # of the steps 5 to 24
    assert ratio == pytest.approx(np.exp(-2.0 * (1.0 - np.arange(5, 25) / 24.0)))
    assert late.difference((0, 3)) == plain.difference((0, 3))  # the forecast itself is the same
