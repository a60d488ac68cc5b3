"""A planner on the CPU whose network a GPU evaluates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import muninn
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.networks.on_gpu import evaluate_on_gpu
from muninn_bench.networks.teacher import Teacher
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.tasks.maze2d.planner import maze_planner


def small_planner() -> Planner:
    torch.manual_seed(0)
    schedule = Schedule.cosine(20)
    network = TemporalUnet(UnetConfig(widths=(8, 16), heads=2, time_width=16), schedule, 16)
    limits = torch.ones(6)
    return maze_planner(Teacher(network.eval(), -limits, limits, 16, schedule, 0.1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_nothing_changes() -> None:
    planner = small_planner()
    assert not evaluate_on_gpu(planner)
    assert "forward" not in vars(planner.denoiser.network)  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_plans_are_the_same_up_to_rounding_and_stay_on_the_cpu() -> None:
    planner = small_planner()
    identity = planner.identity()
    context = torch.rand(5, 2, 4) - 0.5
    noise = planner.draw_noise(seeds=range(5))
    before = planner.sample(context, noise=noise)
    assert evaluate_on_gpu(planner)
    after = planner.sample(context, noise=noise)
    assert after.device.type == "cpu"
    torch.testing.assert_close(after, before, atol=2e-5, rtol=0.0)
    assert not torch.equal(after, before)  # it was the GPU
    assert planner.identity() == identity


@pytest.mark.gpu
def test_a_certificate_of_the_cpu_is_used_if_the_gpu_was_there_first(tmp_path: Path) -> None:
    contexts = torch.rand(120, 2, 4) - 0.5
    family = Family.of(Forecast("sample"), (Everywhere(), Static((0, 5, 10, 15, 19))), "static")
    certificate = muninn.calibrate(
        small_planner(), contexts, tolerance=10.0, risk=0.2, family=family, progress=False
    )
    path = certificate.save(tmp_path / "loose.muninn.safetensors")
    planner = small_planner()
    assert evaluate_on_gpu(planner)
    cached = muninn.cache(planner, path)
    for rows in (3, 1, 5):
        _, record = cached(contexts[:rows], noise=planner.draw_noise(seeds=range(rows)))
        assert cached.reason is None
        assert record.fallback == (None,) * rows
        assert all(record.evaluations < len(planner.sampler))
