"""Deviation metrics: their formulas, their axioms, and what a user's own metric may not do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from muninn.certify.metrics import (
    executed,
    max_step,
    measure,
    metric_name,
    require_tolerance,
    resolve,
    rms_step,
    tolerances,
)
from muninn.errors import InputError

NAMES = ["rms_step", "max_step", "executed:3", "executed:3:rms_step"]


def plans(seed: int, rows: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, 3, generator=generator, dtype=torch.float64)


def test_rms_step_is_the_frobenius_norm_over_the_root_of_the_horizon() -> None:
    full, cached = plans(0), plans(1)
    expected = np.sqrt(((full - cached).numpy() ** 2).sum(axis=(1, 2)) / 8)
    np.testing.assert_allclose(rms_step(full, cached).numpy(), expected, rtol=1e-12)


def test_max_step_is_the_largest_euclidean_distance_at_one_time_step() -> None:
    full, cached = plans(0), plans(1)
    expected = np.linalg.norm((full - cached).numpy(), axis=2).max(axis=1)
    np.testing.assert_allclose(max_step(full, cached).numpy(), expected, rtol=1e-12)


def test_metrics_take_trajectories_without_and_with_several_channel_dimensions() -> None:
    flat = plans(0)[..., 0]
    assert torch.equal(max_step(flat, flat + 2.0), torch.full((5,), 2.0, dtype=torch.float64))
    assert torch.allclose(rms_step(flat, flat + 2.0), torch.tensor(2.0, dtype=torch.float64))
    deep = plans(0).view(5, 8, 3, 1).expand(5, 8, 3, 4)
    moved = deep.clone()
    moved[:, 6] += 1.0
    assert torch.allclose(max_step(deep, moved), torch.tensor(math.sqrt(12.0)).double())


def test_an_executed_metric_is_blind_after_its_prefix_and_sharp_inside() -> None:
    full = plans(0)
    late, early = full.clone(), full.clone()
    late[:, 3:] += 10.0
    early[:, 2] += 10.0
    _, metric = resolve("executed:3")
    assert torch.equal(metric(full, late), torch.zeros(5, dtype=torch.float64))
    assert torch.equal(metric(full, early), max_step(full, early))


@pytest.mark.parametrize("name", NAMES)
@given(seeds=st.tuples(*[st.integers(0, 10_000)] * 3))
def test_built_in_metrics_are_metrics(name: str, seeds: tuple[int, int, int]) -> None:
    _, metric = resolve(name)
    a, b, c = (plans(seed) for seed in seeds)
    assert torch.equal(metric(a, a), torch.zeros(5, dtype=torch.float64))
    assert torch.equal(metric(a, b), metric(b, a))
    assert (metric(a, c) <= metric(a, b) + metric(b, c) + 1e-12).all()
    assert (metric(3 * a, 3 * b) - 3 * metric(a, b)).abs().max() < 1e-12


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_rms_over_steps_never_exceeds_the_largest_step(one: int, other: int) -> None:
    a, b = plans(one), plans(other)
    assert (rms_step(a, b) <= max_step(a, b) + 1e-12).all()


def test_names_say_what_was_measured() -> None:
    assert resolve("executed:3")[0] == "executed:3:max_step"
    assert resolve("executed:3:rms_step")[0] == "executed:3:rms_step"
    assert resolve("rms_step") == ("rms_step", rms_step)
    assert resolve(rms_step) == ("rms_step", rms_step)
    assert "one_channel" in resolve(one_channel)[0]
    assert metric_name(executed(2, rms_step)) == "executed:2:rms_step"
    assert "Callable" in metric_name(CallableMetric())


def one_channel(full: Tensor, cached: Tensor) -> Tensor:
    return (full - cached)[:, :, 0].abs().amax(dim=1)


class CallableMetric:
    def __call__(self, full: Tensor, cached: Tensor) -> Tensor:
        return one_channel(full, cached)


@pytest.mark.parametrize(
    "name", ["rms", "executed", "executed:", "executed:x", "executed:2:l1", "executed:-1", ""]
)
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"rms_step, max_step, executed:N, or pass a callable"):
        resolve(name)


def test_a_prefix_must_hold_a_step_and_fit_the_plan() -> None:
    with pytest.raises(InputError, match="at least one step"):
        resolve("executed:0")
    with pytest.raises(InputError, match="8 steps, fewer than the prefix 9"):
        executed(9)(plans(0), plans(1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-9])
def test_a_metric_must_be_finite_and_not_negative(bad: float) -> None:
    def metric(full: Tensor, cached: Tensor) -> Tensor:
        return torch.tensor([0.0, bad, 0.0, 0.0, 0.0])

    with pytest.raises(InputError, match="finite and at least 0"):
        measure(metric, plans(0), plans(1))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (5, 1), (5, 8)])
def test_a_metric_must_return_one_number_per_call(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"one number per call, shape \(batch,\)"):
        measure(lambda full, cached: torch.zeros(shape), plans(0), plans(1))


def test_a_metric_may_return_anything_that_becomes_a_tensor() -> None:
    as_array = measure(lambda full, cached: np.arange(5.0), plans(0), plans(1))  # type: ignore
    as_half = measure(lambda full, cached: torch.arange(5).half(), plans(0), plans(1))
    for result in (as_array, as_half):
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, np.arange(5.0))


def test_a_tolerance_may_be_a_number_or_depend_on_the_context() -> None:
    context = torch.tensor([[1.0], [2.0], [4.0]])
    np.testing.assert_array_equal(tolerances(0.3, context, 3), [0.3, 0.3, 0.3])
    np.testing.assert_array_equal(tolerances(lambda c: c[:, 0] / 2, context, 3), [0.5, 1.0, 2.0])


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf, -math.inf])
def test_a_tolerance_must_be_finite_and_positive(bad: float) -> None:
    with pytest.raises(InputError, match="finite number above 0"):
        require_tolerance(bad)
    with pytest.raises(InputError, match="finite and above 0"):
        tolerances(lambda c: torch.tensor([1.0, bad]), torch.zeros(2, 1), 2)


def test_a_tolerance_function_must_return_one_number_per_call() -> None:
    with pytest.raises(InputError, match="one number per call"):
        tolerances(lambda c: torch.ones(3, 1), torch.zeros(3, 1), 3)
    with pytest.raises(InputError, match="one number per call"):
        tolerances(lambda c: 0.5, torch.zeros(3, 1), 3)  # type: ignore[arg-type, return-value]
