"""The adapter of docs/guides/adapter.md, as printed there, serves its policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import muninn
from muninn.adapters import (
    adapter_for,
    disable_cache,
    enable_cache,
    is_cache_enabled,
    planner_of,
    registry,
)
from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "adapter.md"


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "_ADAPTERS", dict(registry._ADAPTERS))
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "reach"}
    exec(code, names)
    return names["ReachPolicy"]().eval()


def certify(policy: Any) -> Certificate:
    family = Family.of(Forecast("sample", 1, True), (Everywhere(), Static((0, 1, 4, 9))), "static")
    return muninn.calibrate(
        planner_of(policy),
        torch.randn(72, 3),
        tolerance=1e6,
        risk=0.1,
        family=family,
        progress=False,
    )


def call(policy: Any) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        result: torch.Tensor = policy.sample(torch.ones(2, 3))
    return result


def test_the_guides_adapter_caches_its_policy_and_lets_go(policy: Any) -> None:
    plain = call(policy)
    torch.manual_seed(0)
    torch.testing.assert_close(planner_of(policy).sample(torch.ones(2, 3)), plain)
    enable_cache(policy, certify(policy))
    assert is_cache_enabled(policy) and policy.muninn.last is None
    call(policy)
    assert policy.muninn.last.evaluations.tolist() == [4, 4]
    policy.steps = 5
    with pytest.raises(CertificateError, match="policy: steps: certificate 10, policy 5"):
        call(policy)
    assert policy.muninn.last is None
    policy.steps = 10
    disable_cache(policy)
    assert not is_cache_enabled(policy) and not hasattr(policy, "muninn")
    assert torch.equal(call(policy), plain)


def test_a_subclass_is_served_and_a_stranger_is_told_what_is(policy: Any) -> None:
    class Derived(type(policy)):  # type: ignore[misc]
        pass

    assert adapter_for(Derived()) is adapter_for(policy)
    with pytest.raises(InputError, match=r"no adapter for builtins\.int.*ReachPolicy.*adapter\.md"):
        planner_of(1)
