"""Certificates that are committed still load, and fit the planners they were made for."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import muninn
from muninn.identity.digest import digest
from muninn_bench.platform import Platform, position_metric
from muninn_bench.registry import find_task
from muninn_bench.task import Timed

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(
    path
    for folder in ("models", "results")
    for path in (ROOT / folder).rglob("*.muninn.safetensors")
)

PRINTS = {
    "maze2d": "4a6d4c5425dbb5504cd225312a15cda0",
    "crazyflie": "6dcc83c26299e67db8c1a932a8472358",
    "asv": "eff84ea343dc8841cdd0801e51e08c1f",
}
"""Weights of today's kind of certificate: users hold files with such digests, too."""


def load_platform(name: str) -> Platform:
    task = find_task(name)
    assert isinstance(task, Timed)
    return task.platform("diffuser")


def test_every_committed_certificate_loads_and_names_its_network() -> None:
    made = [muninn.Certificate.load(path) for path in COMMITTED]
    assert len(made) >= 9
    assert all(len(certificate.identity["model"]["weights"]) == 32 for certificate in made)


@pytest.mark.parametrize("name", PRINTS)
def test_the_planner_of_a_platform_fits_its_committed_certificate(name: str) -> None:
    path = ROOT / "models" / name / "closed_loop.muninn.safetensors"
    platform = load_platform(name)
    fast = muninn.cache(platform.planner, path)
    assert fast.certificate is not None and fast.reason is None
    assert platform.planner.identity()["model"]["weights"] == PRINTS[name]
    assert digest(position_metric(platform), "metric")  # so that calibration can be resumed


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_certificates_are_what_they_were(path: Path, tmp_path: Path) -> None:
    committed = muninn.Certificate.load(path)
    assert committed.arithmetic is None
    assert committed.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_the_bundled_certificate_is_used_without_autocast_only() -> None:
    planner = load_platform("maze2d").planner
    path = ROOT / "models" / "maze2d" / "closed_loop.muninn.safetensors"
    fast = muninn.cache(planner, path, on_mismatch="full")
    for context in (nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        with context:
            _, record = fast(torch.zeros(1, 2, 4), generator=torch.Generator().manual_seed(3))
        cached = isinstance(context, nullcontext)
        assert (record.fallback[0] is None) == cached
        assert bool(np.all(record.evaluations < len(fast.planner.sampler))) == cached
