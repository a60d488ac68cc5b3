"""Certificates that are committed still load, and fit the planners they were made for."""

from __future__ import annotations

from pathlib import Path

import pytest

import muninn
from muninn.identity.digest import digest
from muninn_bench.registry import load_platform
from muninn_bench.studies.closed_loop.certified import position_metric

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(
    path
    for folder in ("models", "results")
    for path in (ROOT / folder).rglob("*.muninn.safetensors")
)


def test_every_committed_certificate_loads_and_names_its_network() -> None:
    made = [muninn.Certificate.load(path) for path in COMMITTED]
    assert len(made) >= 9
    assert all(len(certificate.identity["model"]["weights"]) == 32 for certificate in made)


@pytest.mark.parametrize("name", ["maze2d", "crazyflie", "asv"])
def test_the_planner_of_a_platform_fits_its_committed_certificate(name: str) -> None:
    path = ROOT / "models" / name / "closed_loop.muninn.safetensors"
    platform = load_platform(name)
    fast = muninn.cache(platform.planner, path)
    assert fast.certificate is not None and fast.reason is None
    assert digest(position_metric(platform), "metric")  # so that calibration can be resumed
