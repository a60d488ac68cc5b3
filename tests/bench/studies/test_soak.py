"""The soak sees results that change and memory that grows."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import muninn_bench.studies.latency.soak as soak
from latency_cases import tiny
from muninn.engines.shapes import MOST_SHAPES
from muninn.errors import InputError
from muninn_bench.measure.machine import hardware


def test_a_soak_of_a_tiny_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(soak.VARIANTS, "maze2d-fp32", lambda device, calls: tiny())
    monkeypatch.setattr(soak, "EVALUATIONS", 5)
    monkeypatch.setattr(soak, "RARE_EVERY", 5)  # a sweep is 30 calls
    found = soak.run_soak(tmp_path, "cpu", 180, "a test", progress=False)
    assert [(one["program"], one["calls"], one["changed"]) for one in found] == [
        ("static", 90, 0),
        ("gated", 90, 0),
    ]
    assert [[sweep[0] for sweep in one["sweeps"]] for one in found] == [[30, 60, 90]] * 2
    document = json.loads((tmp_path / "soak_cpu.json").read_text())
    assert document["hardware"] == hardware(torch.device("cpu"))
    assert len(document["runs"]) == 2
    with pytest.raises(InputError, match="at least"):
        soak.run_soak(tmp_path, "cpu", 119, "a test")
    small = soak.run_soak(tmp_path, "cpu", 2000, "a test", progress=False, smoke=True)
    assert [len(one["sweeps"]) for one in small] == [2, 2]


@pytest.mark.parametrize("rare", [True, False])
def test_every_rare_call_comes_after_more_shapes_than_graphs_keep(rare: bool) -> None:
    seen: list[int] = []

    def run(rows: int, noise: Any) -> Any:
        seen.append(rows)
        return torch.zeros(1), None

    calls, device = 3 * soak.RARE_EVERY * len(soak.RARE), torch.device("cpu")
    batch = lambda rows, first: (rows, None)  # noqa: E731
    sizes = soak.RARE if rare else ()
    found = soak.soak(run, batch, device, calls, sizes, soak.RARE_EVERY, lambda steps: None)
    if not rare:
        assert set(seen) == set(soak.COMMON)
        return
    assert found["distinct"] == soak.DISTINCT + len(soak.RARE)
    kept: OrderedDict[int, None] = OrderedDict()
    captured = Counter[int]()
    for rows in seen:  # what the graph runtimes do
        captured[rows] += rows not in kept
        kept[rows] = None
        kept.move_to_end(rows)
        if len(kept) > MOST_SHAPES:
            kept.popitem(last=False)
    assert captured == dict.fromkeys(soak.RARE, 3) | dict.fromkeys(soak.COMMON, 1)


def test_a_result_that_changes_and_memory_that_grows_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0
    memory = iter(range(1000))

    def run(context: Any, noise: Any) -> Any:
        nonlocal calls
        calls += 1
        return torch.full((1,), float(calls == 100)), None

    monkeypatch.setattr(soak, "memory", lambda device: (float(next(memory)), 0.0, 0.0))
    device = torch.device("cpu")
    batch = lambda rows, first: (None, None)  # noqa: E731
    found = soak.soak(run, batch, device, 960, soak.RARE, soak.RARE_EVERY, lambda steps: None)
    assert found["changed"] == 1
    slope = 1e3 / (soak.RARE_EVERY * len(soak.RARE))  # a megabyte a sweep
    assert found["growth_mb_per_1000"] == pytest.approx(slope)
    assert found["late_growth_mb_per_1000"] == pytest.approx(slope)
