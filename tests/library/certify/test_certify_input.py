"""What calibrate refuses, and that every refusal names the next step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from certify_cases import certificate, contexts, drive, planner
from muninn.certify.units import Episodes, PlanFunction
from muninn.errors import DenoiserError, InputError
from muninn_bench.studies.coverage.mixture import mixture_planner

NUMBERS = [0.0, -0.1, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", NUMBERS)
def test_a_bad_tolerance_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="tolerance must be a finite number above 0 in the units"):
        certificate(tolerance=bad)


@pytest.mark.parametrize("bad", [*NUMBERS, 1.0, 1.5])
def test_a_bad_risk_or_confidence_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="risk must lie strictly between 0 and 1"):
        certificate(risk=bad)
    with pytest.raises(InputError, match="confidence must lie strictly between 0 and 1, or be No"):
        certificate(confidence=bad)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"calls": None}, "calls holds no call"),
        ({"calls": 0}, "calls holds no call; give batched contexts"),
        ({"calls": -3}, "calls holds no call"),
        ({"calls": {"goal": "left"}}, "context is dict without a tensor; give tensors"),
        ({"calls": torch.zeros(0, 2)}, "context is empty; give at least one call"),
        ({"calls": torch.tensor(1.0)}, "has no batch dimension"),
        ({"calls": (torch.zeros(3, 2), torch.zeros(4, 2))}, "4 rows but context"),
        ({"calls": Episodes(drive, 0)}, "at least one episode, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"unit": "step"}, "unit is 'call' or 'episode', got 'step'"),
        ({"unit": "episode"}, "needs episode_of, one episode number per call"),
        ({"episode_of": [0] * 72}, "keep one random call of each episode"),
        ({"metric": "l2"}, "unknown metric 'l2'; choose from"),
        ({"metric": "executed:9"}, "8 steps, fewer than the prefix 9"),
        ({"family": None, "calls": contexts(120), "objective": "speed"}, "'time' or 'worst'"),
        ({"objective": "speed"}, "'time' or 'worst'"),  # also where nothing is tuned
    ],
)
def test_arguments_that_do_not_fit_name_what_would(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        certificate(**changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda gap: gap * math.nan, "finite and at least 0"),
        (lambda gap: gap + math.inf, "finite and at least 0"),
        (lambda gap: -gap - 1.0, "finite and at least 0"),
        (lambda gap: gap[:, None], "one number per call"),
        (lambda gap: gap.mean(), "one number per call"),
    ],
)
def test_a_metric_that_misbehaves_is_refused(
    change: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        certificate(metric=lambda full, cached: change((full - cached).abs().amax(dim=(1, 2))))


@pytest.mark.parametrize(
    "change",
    [
        lambda ones: 0.0 * ones,
        lambda ones: -ones,
        lambda ones: math.nan * ones,
        lambda ones: math.inf * ones,
        lambda ones: ones[:, None],
        lambda ones: 1.0,
    ],
)
def test_a_tolerance_function_that_misbehaves_is_refused(change: Callable[[Tensor], Any]) -> None:
    with pytest.raises(InputError, match="tolerance function returned"):
        certificate(tolerance=lambda context: change(torch.ones(len(context))))


def test_a_sampler_of_one_step_has_nothing_to_cache() -> None:
    with pytest.raises(InputError, match="one step has nothing to cache; use the planner as it is"):
        certificate(planner=mixture_planner("ddim", steps=1))


def test_full_compute_that_is_not_finite_is_never_certified() -> None:
    def broken(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return x * float("nan")

    with pytest.raises(DenoiserError, match="not finite; check the network before calibrating"):
        certificate(planner=replace(planner(), denoiser=broken))


def test_an_episode_that_never_plans_is_refused() -> None:
    def idle(plan: PlanFunction, seed: int) -> None:
        return None

    with pytest.raises(InputError, match="ended without planning once"):
        certificate(calls=Episodes(idle, 72))
