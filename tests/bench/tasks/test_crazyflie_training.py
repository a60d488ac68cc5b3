"""Training on runs of any layout: files, windows, what is inpainted, what a task trains."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.runs import (
    PlanSource,
    Runs,
    load_runs,
    save_runs,
    split_runs,
    symmetric_limits,
)
from muninn_bench.networks.teacher import load_teacher
from muninn_bench.networks.trainer import Training, train
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.diffuser_lesson import DiffuserLesson, plan_loss
from muninn_bench.registry import find_task
from muninn_bench.tasks.crazyflie.data import find_route
from muninn_bench.tasks.flown import FlownTask

TINY = UnetConfig(channels=6, widths=(8, 16), blocks=1, middle_blocks=1, time_width=16, heads=2)


def make_runs(count: int = 6) -> Runs:
    """Random walks of different lengths; the whole state, three of it position, is inpainted."""
    generator = np.random.default_rng(0)
    pieces = [0.1 * np.cumsum(generator.standard_normal((5 + i, 6)), axis=0) for i in range(count)]
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    return Runs(np.concatenate(pieces).astype(np.float32), offsets, 0.1, 3, 6)


def test_a_file_of_runs_keeps_them_to_half_a_code(tmp_path: Path) -> None:
    runs = make_runs()
    save_runs(tmp_path / "runs.npz", runs)
    read = load_runs(tmp_path / "runs.npz")
    half = np.abs(runs.frames).max(axis=0) / 32767.0 / 2.0
    assert (np.abs(read.frames - runs.frames) <= 1.01 * half).all()
    np.testing.assert_array_equal(read.offsets, runs.offsets)
    assert replace(read, frames=runs.frames, offsets=runs.offsets) == replace(
        runs, frames=runs.frames, offsets=runs.offsets
    )


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", speeds=np.zeros(3))
    with pytest.raises(InputError, match="speeds"):
        load_runs(tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError, match="no runs"):
        load_runs(tmp_path / "nothing.npz")


def test_windows_end_at_rest_at_the_goal() -> None:
    runs = make_runs()
    low, high = symmetric_limits(runs)
    source = PlanSource(runs, low, high, horizon=20, device=torch.device("cpu"))
    windows = source.draw(100, 0.5, torch.Generator().manual_seed(0))
    assert windows[:, -1, 3:].abs().max() == 0.0
    goals = torch.from_numpy(runs.frames[runs.offsets[1:] - 1, :3]) / high[:3]
    assert (windows[:, -1, None, :3] - goals).norm(dim=-1).min(dim=1).values.max() < 1e-6
    training, held_out = split_runs(runs, 0.34)
    assert (training.position_channels, held_out.state_channels) == (3, 6)


def test_the_loss_inpaints_as_many_channels_as_the_runs_say() -> None:
    schedule = Schedule.cosine(10)
    seen: list[torch.Tensor] = []

    class Recorder(TemporalUnet):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            seen.append(x.clone())
            return x

    network = Recorder(TINY, schedule, 16)
    clean, noise, t = torch.randn(3, 16, 6), torch.randn(3, 16, 6), torch.tensor([1, 5, 9])
    for channels in (2, 6):
        plan_loss(network, torch.from_numpy(schedule.alpha_bar), channels, clean, noise, t)
        ends, given = seen[-1][:, [0, -1]], clean[:, [0, -1]]
        assert torch.equal(ends[..., :channels], given[..., :channels])
        assert (ends[..., channels:] != given[..., channels:]).all()


def test_training_takes_layout_and_time_from_the_runs(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    lesson = DiffuserLesson(make_runs(), TINY, 16, cpu, steps=10)
    settings = Training(tmp_path / "out", steps=2, batch=4, device="cpu", fast=False)
    teacher = load_teacher(train(lesson, settings))
    assert (teacher.frame_seconds, teacher.horizon, len(teacher.low)) == (0.1, 16, 6)
    with pytest.raises(InputError, match="6 channels, the network 4"):
        DiffuserLesson(make_runs(), replace(TINY, channels=4), 16, cpu)


@pytest.mark.parametrize(
    ("name", "channels", "positions", "horizon", "batch"),
    [("crazyflie", 6, 3, 72, 1024), ("asv", 4, 2, 128, 512)],
)
def test_a_task_trains_its_own_network_on_its_own_runs(
    name: str, channels: int, positions: int, horizon: int, batch: int, tmp_path: Path
) -> None:
    task = find_task(name)
    assert isinstance(task, FlownTask)
    settings = task.training("diffuser", tmp_path)
    assert (settings.out, settings.batch, settings.fast) == (tmp_path, batch, True)
    assert (task.recording.position_channels, task.recording.state_channels) == (
        positions,
        channels,
    )
    full = make_runs()
    save_runs(tmp_path / "runs.npz", replace(full, frames=full.frames[:, :channels]))
    lesson = task.lesson("diffuser", tmp_path / "runs.npz", replace(settings, device="cpu"))
    assert lesson.network.config == task.networks["diffuser"]
    (plans, _, _) = lesson.batch(2, torch.Generator().manual_seed(0))
    assert plans.shape == (2, horizon, channels)


def test_routes_say_which_package_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ompl", None)
    with pytest.raises(InputError, match=r"OMPL: pip install 'muninn-bench\[fly\]'"):
        find_route(np.zeros(3), np.ones(3), 0)
