"""Training at a tiny scale: windows, the loss identity, learning, and resuming."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks import trainer
from muninn_bench.networks.runs import (
    PlanSource,
    Runs,
    largest_value,
    split_runs,
    standard_limits,
    symmetric_limits,
)
from muninn_bench.networks.teacher import NetworkConfig, load_teacher
from muninn_bench.networks.trainer import Training, train
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.diffuser_lesson import DiffuserLesson, plan_loss

TINY_TRANSFORMER = TransformerConfig(
    patch=4, width=16, blocks=4, heads=2, frame_width=8, time_width=16
)
TINY = UnetConfig(widths=(8, 16), blocks=1, middle_blocks=1, time_width=16, heads=2)


def straight_runs(count: int) -> list[np.ndarray]:
    """Return runs that move on a line; frame k of a run is k times its slope."""
    generator = np.random.default_rng(0)
    slopes = generator.uniform(-0.1, 0.1, (count, 6))
    return [np.arange(4 + index % 5)[:, None] * slope for index, slope in enumerate(slopes)]


def as_runs(runs: list[np.ndarray]) -> Runs:
    offsets = np.concatenate([[0], np.cumsum([len(run) for run in runs])]).astype(np.int64)
    return Runs(np.concatenate(runs).astype(np.float32), offsets, 0.03, 2, 4)


def lesson(network: NetworkConfig = TINY) -> DiffuserLesson:
    runs = as_runs(straight_runs(20))
    return DiffuserLesson(runs, network, 16, torch.device("cpu"), steps=10, held_out=0.2)


def settings(out: Path, **changes: Any) -> Training:
    given = {"steps": 3, "batch": 4, "device": "cpu", "fast": False, "report": 2}
    return Training(out, **{**given, **changes})


def test_windows_are_pieces_of_runs_held_at_their_end() -> None:
    runs = as_runs(straight_runs(6))
    low, high = symmetric_limits(runs)
    source = PlanSource(runs, low, high, horizon=12, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    windows = source.draw(200, whole_share=0.5, generator=generator)
    assert windows.shape == (200, 12, 6)
    assert windows.abs().max() <= 1.0 + 1e-6
    torch.testing.assert_close(windows[:, -1, 2:], torch.zeros(200, 4))
    ends = (torch.from_numpy(runs.frames[runs.offsets[1:] - 1]) / high)[:, :2]
    distance = (windows[:, -1, None, :2] - ends).norm(dim=-1).min(dim=1).values
    assert distance.max() < 1e-6
    whole = source.draw(50, whole_share=1.0, generator=generator)
    torch.testing.assert_close(whole[:, 0], torch.zeros(50, 6))


def test_standard_limits_give_mean_zero_and_spread_one() -> None:
    runs = as_runs(straight_runs(30))
    low, high = standard_limits(runs)
    standardised = 2.0 * (torch.from_numpy(runs.frames) - low) / (high - low) - 1.0
    torch.testing.assert_close(standardised.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0.0)
    spread = standardised.std(dim=0, correction=0)
    torch.testing.assert_close(spread, torch.ones(6), atol=1e-5, rtol=0.0)
    clip = largest_value(runs, low, high)
    assert clip == pytest.approx(round(clip, 1))
    assert clip - 0.1 < float(standardised.abs().max()) <= clip


def test_split_keeps_every_run_once() -> None:
    runs = as_runs(straight_runs(10))
    training, held_out = split_runs(runs, 0.25)
    assert (len(training.offsets) - 1, len(held_out.offsets) - 1) == (8, 2)
    np.testing.assert_array_equal(np.concatenate([training.frames, held_out.frames]), runs.frames)
    with pytest.raises(InputError, match="2 runs"):
        split_runs(as_runs(straight_runs(1)), 0.5)


def test_loss_of_a_silent_network_is_that_of_the_linear_denoiser() -> None:
    schedule = Schedule.cosine(10)
    network = TemporalUnet(TINY, schedule, 16)
    for parameter in network.project_out.parameters():
        torch.nn.init.zeros_(parameter)
    alpha_bar = torch.from_numpy(schedule.alpha_bar)
    clean, noise, t = torch.randn(3, 16, 6), torch.randn(3, 16, 6), torch.tensor([0, 4, 9])
    signal = torch.from_numpy(schedule.alpha_bar).float()[t][:, None, None]
    noisy = signal.sqrt() * clean + (1 - signal).sqrt() * noise
    noisy[:, [0, -1], :4] = clean[:, [0, -1], :4]
    error = network.skip[t][:, None, None] * noisy - clean
    expected = (error / network.gain[t][:, None, None]).square().mean(dim=(1, 2))
    torch.testing.assert_close(plan_loss(network, alpha_bar, 4, clean, noise, t), expected)


def test_loss_of_a_silent_transformer_is_that_of_the_linear_estimate() -> None:
    schedule = Schedule.cosine(10)
    network = TrajectoryTransformer(TINY_TRANSFORMER, schedule, 16)
    for parameter in network.project_out.parameters():
        torch.nn.init.zeros_(parameter)
    alpha_bar = torch.from_numpy(schedule.alpha_bar)
    clean, noise, t = torch.randn(3, 16, 6), torch.randn(3, 16, 6), torch.tensor([0, 4, 9])
    a = torch.from_numpy(schedule.alpha_bar).sqrt()[t][:, None, None]
    s = (1 - a.square()).sqrt()
    # Away from inpainted entries F should be a noise - s x0; at those, x = x0, (a - 1) x0 / s.
    correction = a * noise - s * clean
    correction[:, [0, -1], :4] = ((a - 1) / s * clean)[:, [0, -1], :4]
    expected = correction.square().mean(dim=(1, 2)).float()
    torch.testing.assert_close(
        plan_loss(network, alpha_bar, 4, clean, noise, t), expected, rtol=1e-4, atol=1e-5
    )


def test_the_noise_of_an_inpainted_input_leads_back_to_the_plan() -> None:
    # Whoever predicts what the loss asks for gives the sampler x0 = (x - s eps) / a everywhere.
    schedule = Schedule.cosine(10)
    seen: list[torch.Tensor] = []

    class Recorder(TrajectoryTransformer):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            signal = torch.from_numpy(schedule.alpha_bar)[t][:, None, None]
            return ((x - signal.sqrt() * clean) / (1 - signal).sqrt()).float()

    clean, noise, t = torch.randn(3, 16, 6), torch.randn(3, 16, 6), torch.tensor([0, 4, 8])
    network = Recorder(TINY_TRANSFORMER, schedule, 16)
    loss = plan_loss(network, torch.from_numpy(schedule.alpha_bar), 4, clean, noise, t)
    torch.testing.assert_close(loss, torch.zeros(3), atol=1e-8, rtol=0.0)
    assert torch.equal(seen[0][:, [0, -1], :4], clean[:, [0, -1], :4])


def test_learning_rate_rises_and_ends_at_zero(tmp_path: Path) -> None:
    given = settings(tmp_path, warmup=10, learning_rate=1.0)
    assert given.rate(0, 0.0) == pytest.approx(0.1)
    assert given.rate(9, 0.0) == pytest.approx(1.0)
    assert given.rate(100, 0.5) == pytest.approx(0.5)
    assert given.rate(100, 1.0) == given.rate(100, 1.2) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("network", "predicts"),
    [
        (TINY, "sample"),
        (replace(TINY, predicts="epsilon"), "epsilon"),
        (TINY_TRANSFORMER, "epsilon"),
    ],
)
def test_training_learns_and_writes_its_files(
    network: NetworkConfig, predicts: str, tmp_path: Path
) -> None:
    given = settings(
        tmp_path, steps=80, warmup=1, learning_rate=5e-3, batch=16, averaging=0.9, report=1
    )
    teacher = load_teacher(train(lesson(network), given))
    assert (teacher.horizon, teacher.schedule.steps) == (16, 10)
    assert (teacher.network.config, teacher.predicts) == (network, predicts)
    frames = torch.from_numpy(as_runs(straight_runs(20)).frames)
    assert 0.95 * teacher.clip <= teacher.normalise(frames).abs().max() <= teacher.clip + 1e-6
    with (tmp_path / "training.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["step", "seconds", "learning_rate", "loss", "validation_loss"]
    assert float(rows[-1]["validation_loss"]) < 0.8 * float(rows[0]["validation_loss"])


def test_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    train(lesson(), settings(tmp_path))
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    train(lesson(), settings(tmp_path, steps=4, learning_rate=0.0))
    continued = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert (saved["step"], continued["step"]) == (3, 4)
    assert continued["seconds"] >= saved["seconds"]
    assert continued["rows"][: len(saved["rows"])] == saved["rows"]
    # With no learning rate the weights of the resumed training are the saved ones.
    for name, value in saved["network"].items():
        assert torch.equal(continued["network"][name], value)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    train(lesson(), settings(tmp_path))
    with pytest.raises(InputError, match=r"is of diffuser UnetConfig.*, not of diffuser Tr"):
        train(lesson(TINY_TRANSFORMER), settings(tmp_path))


def test_an_interrupted_training_leaves_a_checkpoint_and_a_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    drawn = PlanSource.draw
    count = iter(range(100))

    def interrupted(self: PlanSource, *arguments: Any) -> Any:
        if next(count) == 6:  # one draw is the held-out windows
            raise KeyboardInterrupt
        return drawn(self, *arguments)

    monkeypatch.setattr(PlanSource, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(lesson(), settings(tmp_path, steps=50))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"checkpoint.pt", "teacher.safetensors"} <= names
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 5
    for name, value in load_teacher(tmp_path / "teacher.safetensors").network.state_dict().items():
        assert torch.equal(value.half(), saved["average"][name].half())


def test_runs_that_the_network_does_not_fit_are_refused() -> None:
    runs = as_runs(straight_runs(20))
    with pytest.raises(InputError, match="6 channels, the network 4"):
        DiffuserLesson(runs, replace(TINY, channels=4), 16, torch.device("cpu"))
