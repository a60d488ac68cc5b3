"""Teacher files round-trip; the shipped teacher keeps its contract and, slowly, its bar."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from muninn.bench.maze import plan_is_free, sample_problems
from muninn.bench.maze_planner import sample_plans
from muninn.errors import InputError
from muninn.planners import Teacher, TemporalUnet, UnetConfig, load_teacher, save_teacher
from muninn.schedule import Schedule

SHIPPED = Path(__file__).parents[2] / "models" / "maze2d" / "teacher.safetensors"


def tiny_teacher() -> Teacher:
    torch.manual_seed(0)
    config = UnetConfig(widths=(8, 16), blocks=1, middle_blocks=1, time_width=16, heads=2)
    schedule = Schedule.cosine(20)
    low, high = torch.tensor([-4.0, -3.0, -2.0, -1.0, -1.0, -1.0]), torch.full((6,), 5.0)
    return Teacher(TemporalUnet(config, schedule, 16).eval(), low, high, 16, schedule, 0.03)


def test_a_teacher_survives_its_file(tmp_path: Path) -> None:
    teacher = tiny_teacher()
    with torch.no_grad():
        for parameter in teacher.network.parameters():
            parameter.copy_(parameter.half().float())
    save_teacher(tmp_path / "t.safetensors", teacher)
    loaded = load_teacher(tmp_path / "t.safetensors")
    x, t = torch.randn(2, 16, 6), torch.tensor([3, 19])
    assert torch.equal(loaded.network(x, t), teacher.network(x, t))
    assert torch.equal(loaded.low, teacher.low)
    assert torch.equal(loaded.high, teacher.high)
    assert (loaded.horizon, loaded.frame_seconds) == (16, 0.03)
    assert loaded.schedule.digest() == teacher.schedule.digest()
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())


def test_normalising_maps_limits_to_one_and_back() -> None:
    teacher = tiny_teacher()
    ends = torch.stack([teacher.low, teacher.high])
    expected = torch.stack([-torch.ones(6), torch.ones(6)])
    torch.testing.assert_close(teacher.normalise(ends), expected)
    world = torch.randn(3, 7, 6)
    torch.testing.assert_close(teacher.unnormalise(teacher.normalise(world)), world)
    torch.testing.assert_close(teacher.normalise(world[..., :4]), teacher.normalise(world)[..., :4])
    with pytest.raises(InputError, match="6 channels"):
        teacher.normalise(torch.zeros(7))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        load_teacher(tmp_path / "nothing.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="not a muninn-teacher"):
        load_teacher(tmp_path / "other.safetensors")


def test_shipped_teacher_is_small_and_plans_one_free_route() -> None:
    assert SHIPPED.stat().st_size <= 10_000_000
    teacher = load_teacher(SHIPPED)
    assert sum(parameter.numel() for parameter in teacher.network.parameters()) <= 5_000_000
    assert (teacher.horizon, teacher.schedule.steps) == (256, 100)
    problems = sample_problems(4, seed=11)
    plans = sample_plans(teacher, problems, seed=11, steps=10)
    assert plan_is_free(plans[..., :2]).all()


@pytest.mark.slow
def test_shipped_teacher_meets_its_bar() -> None:
    pytest.importorskip("gymnasium_robotics")
    from muninn.bench.maze_rollout import follow_all

    teacher = load_teacher(SHIPPED)
    problems = sample_problems(500, seed=40_000)
    plans = sample_plans(teacher, problems, seed=40_000)
    assert plan_is_free(plans[..., :2]).mean() >= 0.97
    assert follow_all(problems[:150], plans[:150]).mean() >= 0.97
