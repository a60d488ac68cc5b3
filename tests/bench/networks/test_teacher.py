"""Teacher files round-trip; the shipped teachers keep their contract and, slowly, their bar."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.teacher import Teacher, load_teacher, save_teacher
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.maze import sample_problems
from muninn_bench.tasks.maze2d.planner import (
    BUNDLED,
    bundled_teacher,
    maze_contexts,
    maze_planner,
    sample_plans,
)

LOW, HIGH = torch.tensor([-4.0, -3.0, -2.0, -1.0, -1.0, -1.0]), torch.full((6,), 5.0)
SCHEDULE = Schedule.cosine(20)


def unet_teacher() -> Teacher:
    torch.manual_seed(0)
    config = UnetConfig(widths=(8, 16), blocks=1, middle_blocks=1, time_width=16, heads=2)
    network = TemporalUnet(config, SCHEDULE, 16).eval()
    return Teacher(network, LOW, HIGH, 16, SCHEDULE, 0.03)


def noise_unet_teacher() -> Teacher:
    torch.manual_seed(0)
    teacher = unet_teacher()
    config = replace(teacher.network.config, predicts="epsilon")
    return replace(teacher, network=TemporalUnet(config, SCHEDULE, 16).eval())


def transformer_teacher() -> Teacher:
    torch.manual_seed(0)
    config = TransformerConfig(patch=4, width=16, blocks=4, heads=2, frame_width=8, time_width=16)
    network = TrajectoryTransformer(config, SCHEDULE, 16).eval()
    return Teacher(network, LOW, HIGH, 16, SCHEDULE, 0.03, clip=2.5)


@pytest.mark.parametrize("build", [unet_teacher, noise_unet_teacher, transformer_teacher])
def test_a_teacher_survives_its_file(build: Callable[[], Teacher], tmp_path: Path) -> None:
    teacher = build()
    with torch.no_grad():
        for parameter in teacher.network.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half().float())
    save_teacher(tmp_path / "t.safetensors", teacher)
    loaded = load_teacher(tmp_path / "t.safetensors")
    x, t = torch.randn(2, 16, 6), torch.tensor([3, 19])
    assert torch.equal(loaded.network(x, t), teacher.network(x, t))
    assert loaded.network.config == teacher.network.config
    assert torch.equal(loaded.low, teacher.low)
    assert torch.equal(loaded.high, teacher.high)
    assert (loaded.horizon, loaded.frame_seconds) == (16, 0.03)
    assert (loaded.predicts, loaded.clip) == (teacher.predicts, teacher.clip)
    assert loaded.schedule.digest() == teacher.schedule.digest()
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    assert maze_planner(loaded).sampler.describe() == maze_planner(teacher).sampler.describe()


@pytest.mark.parametrize("build", [unet_teacher, noise_unet_teacher, transformer_teacher])
def test_planners_sample_in_the_teachers_terms(build: Callable[[], Teacher]) -> None:
    teacher = build()
    described = maze_planner(teacher).sampler.describe()
    assert (described["kind"], described["clip"]) == (teacher.predicts, teacher.clip)
    assert (described["name"], described["eta"], described["steps"]) == ("ddim", 0.0, 20)
    problems = sample_problems(2, seed=0)
    plans = teacher.normalise(torch.tensor(sample_plans(teacher, problems, seed=0)).float())
    # Float32 rounding of the way to world units and back.
    assert plans[:, 1:-1].abs().max() <= teacher.clip + 1e-5
    ends = maze_contexts(teacher, problems)
    torch.testing.assert_close(plans[:, [0, -1], :4], ends, atol=1e-5, rtol=1e-5)


def test_files_without_a_networks_name_hold_a_unet(tmp_path: Path) -> None:
    teacher = unet_teacher()
    save_teacher(tmp_path / "new.safetensors", teacher)
    description, weights = read(tmp_path / "new.safetensors")
    del description["network"]
    assert (description["predicts"], description["clip"]) == ("x0", 1.0)
    write(tmp_path / "old.safetensors", description, weights)
    loaded = load_teacher(tmp_path / "old.safetensors")
    assert isinstance(loaded.network, TemporalUnet)
    assert (loaded.predicts, loaded.clip) == ("sample", 1.0)


@pytest.mark.parametrize(
    ("entry", "value", "complaint"),
    [
        ("network", "recurrent", "unknown network 'recurrent'"),
        ("predicts", "v", "unknown prediction 'v'"),
        ("predicts", "epsilon", "unknown prediction 'epsilon'; a unet has 'x0'"),
        ("schedule", {"name": "linear", "steps": 5}, "unknown schedule 'linear'"),
    ],
)
def test_unknown_contents_are_refused(
    entry: str, value: object, complaint: str, tmp_path: Path
) -> None:
    save_teacher(tmp_path / "t.safetensors", unet_teacher())
    description, weights = read(tmp_path / "t.safetensors")
    write(tmp_path / "t.safetensors", {**description, entry: value}, weights)
    with pytest.raises(InputError, match=complaint):
        load_teacher(tmp_path / "t.safetensors")


def read(path: Path) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as stored:
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        return json.loads(stored.metadata()["muninn"]), weights


def write(path: Path, description: object, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, path, metadata={"muninn": json.dumps(description)})


def test_normalising_maps_limits_to_one_and_back() -> None:
    teacher = unet_teacher()
    ends = torch.stack([teacher.low, teacher.high])
    expected = torch.stack([-torch.ones(6), torch.ones(6)])
    torch.testing.assert_close(teacher.normalise(ends), expected)
    world = torch.randn(3, 7, 6)
    torch.testing.assert_close(teacher.unnormalise(teacher.normalise(world)), world)
    torch.testing.assert_close(teacher.normalise(world[..., :4]), teacher.normalise(world)[..., :4])
    with pytest.raises(InputError, match="6 channels"):
        teacher.normalise(torch.zeros(7))


def test_impossible_terms_are_refused() -> None:
    with pytest.raises(InputError, match="positive"):
        replace(unet_teacher(), clip=0.0)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        load_teacher(tmp_path / "nothing.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="not a muninn-teacher"):
        load_teacher(tmp_path / "other.safetensors")


@pytest.mark.parametrize("name", BUNDLED)
def test_shipped_teacher_is_small_and_plans_free_routes(name: str) -> None:
    path = Path(__file__).parents[3] / "models" / name / "teacher.safetensors"
    assert path.stat().st_size <= 8_000_000
    teacher = bundled_teacher(name)
    assert sum(parameter.numel() for parameter in teacher.network.parameters()) <= 4_000_000
    assert (teacher.horizon, teacher.schedule.steps) == (256, 100)
    problems = sample_problems(4, seed=11)
    plans = sample_plans(teacher, problems, seed=11, steps=10)
    assert plan_is_free(plans[..., :2]).all()


def test_the_shipped_teachers_differ_in_all_terms() -> None:
    unet, transformer = (bundled_teacher(name) for name in BUNDLED)
    assert isinstance(unet.network, TemporalUnet)
    assert (unet.predicts, unet.clip) == ("sample", 1.0)
    assert torch.equal(unet.low, -unet.high)
    assert isinstance(transformer.network, TrajectoryTransformer)
    assert (transformer.predicts, transformer.clip) == ("epsilon", 2.5)
    # Standardised values lie within the clip: so must those of the U-Net's limits, seen from here.
    assert transformer.normalise(unet.high).abs().max() <= 2.5
    with pytest.raises(InputError, match="maze2d, maze2d-transformer"):
        bundled_teacher("maze3d")


def test_the_shipped_unet_is_the_one_its_certificates_name() -> None:
    identity = maze_planner(bundled_teacher()).identity(older=True)
    assert identity["model"]["weights"] == "fdb80f66b6633d846657a64dac80e962"


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_shipped_teacher_meets_its_bar(name: str) -> None:
    pytest.importorskip("gymnasium_robotics")
    from muninn_bench.tasks.maze2d.rollout import follow_all

    teacher = bundled_teacher(name)
    problems = sample_problems(500, seed=40_000)
    plans = sample_plans(teacher, problems, seed=40_000)
    assert plan_is_free(plans[..., :2]).mean() >= 0.97
    assert follow_all(problems[:150], plans[:150]).mean() >= 0.97
