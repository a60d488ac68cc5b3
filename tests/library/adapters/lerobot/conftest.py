"""What the tests of the LeRobot adapter share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lerobot_cases import certify, make_policy
from muninn.certify.certificate import Certificate


@pytest.fixture(scope="session")
def certificate() -> Certificate:
    """For ``make_policy()``: DDPM, 100 steps."""
    return certify(make_policy())


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    """LeRobot's policies that compile themselves change the precision of the whole process."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def policy() -> Any:
    return make_policy()


@pytest.fixture
def count_evaluations() -> Callable[[Any], list[int]]:
    """Batch sizes of the evaluations of a policy's U-Net from now on."""

    def start(policy: Any) -> list[int]:
        calls: list[int] = []
        policy.diffusion.unet.register_forward_pre_hook(
            lambda _, arguments: calls.append(len(arguments[0]))
        )
        return calls

    return start
