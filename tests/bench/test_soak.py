"""The soak sees results that change and memory that grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import muninn.bench.latency.soak as soak
from latency_cases import tiny
from muninn.bench.latency.machine import hardware
from muninn.errors import InputError


def test_a_soak_of_a_tiny_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(soak.BUILDERS, "maze2d-fp32", lambda device, calls: tiny())
    monkeypatch.setattr(soak, "EVALUATIONS", 5)
    found = soak.run_soak(tmp_path, "cpu", 240, "a test", progress=False)
    assert [(one.program, one.calls, one.changed) for one in found] == [
        ("static", 120, 0),
        ("gated", 120, 0),
    ]
    document = json.loads((tmp_path / "soak_cpu.json").read_text())
    assert document["hardware"] == hardware(torch.device("cpu"))
    assert len(document["runs"]) == 2
    with pytest.raises(InputError, match="at least"):
        soak.run_soak(tmp_path, "cpu", 10, "a test")


def test_a_result_that_changes_and_memory_that_grows_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0
    memory = iter(range(1000))

    def run(context: Any, noise: Any) -> Any:
        nonlocal calls
        calls += 1
        return torch.full((1,), float(calls == 100)), None

    monkeypatch.setattr(soak, "_allocated", lambda device: float(next(memory)))
    device = torch.device("cpu")
    found = soak._soak(
        run, lambda rows, first: (None, None), device, "static", "eager", 200, lambda steps: None
    )
    assert found.changed == 1
    assert found.growth_mb_per_1000 > 1.0
