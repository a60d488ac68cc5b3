"""LeRobot's real classes: processors, checkpoints, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from muninn.errors import InputError
from muninn_bench.networks.runs import Runs
from muninn_bench.networks.trainer import Training, train
from muninn_bench.tasks.metaworld import policy as policies
from muninn_bench.tasks.metaworld.policy import (
    SCENE,
    STATE,
    features,
    load_policy,
    make_policy,
    make_processors,
)

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")


def test_the_processors_map_the_data_to_the_unit_cube_and_back(
    demonstrations: Runs,
) -> None:
    preprocessor, postprocessor = make_processors(make_policy((16, 32)), demonstrations)
    actions = torch.from_numpy(demonstrations.frames[:, 39:])
    seen = features(torch.from_numpy(demonstrations.frames[:, :39]))
    normalised = preprocessor({**seen, "action": actions})
    for name in (STATE, SCENE, "action"):
        assert torch.allclose(normalised[name].amin(dim=0), torch.tensor(-1.0), atol=1e-6)
        assert torch.allclose(normalised[name].amax(dim=0), torch.tensor(1.0), atol=1e-6)
    assert torch.allclose(postprocessor(normalised["action"]), actions, atol=1e-6)


def test_the_policy_is_shown_hand_gripper_puck_and_goal() -> None:
    seen = features(torch.arange(39.0)[None])
    assert seen[STATE].tolist() == [[0, 1, 2, 3]]
    assert seen[SCENE].tolist() == [[4, 5, 6, 36, 37, 38]]


def test_a_checkpoint_serves_both_schedulers_with_the_same_weights(
    models: Path, demonstrations: Runs
) -> None:
    ddpm, preprocessor, postprocessor = load_policy(models / "diffusion", "DDPM", 100)
    ddim, *_ = load_policy(models / "diffusion", "DDIM", 16)
    assert type(ddim.diffusion.noise_scheduler).__name__ == "DDIMScheduler"
    assert (ddpm.diffusion.num_inference_steps, ddim.diffusion.num_inference_steps) == (100, 16)
    for (name, here), there in zip(
        ddpm.state_dict().items(), ddim.state_dict().values(), strict=True
    ):
        assert torch.equal(here, there), name
    fresh = make_processors(ddpm, demonstrations)
    seen = features(torch.from_numpy(demonstrations.frames[:, :39]))
    assert torch.equal(preprocessor(dict(seen))[SCENE], fresh[0](dict(seen))[SCENE])
    actions = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)
    assert torch.equal(postprocessor(actions), fresh[1](actions))


def test_a_folder_without_a_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no policy"):
        load_policy(tmp_path, "DDPM", 100)


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_training_lowers_the_loss_resumes_and_leaves_a_loadable_average(
    kind: str, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "make_policy", lambda: make_policy((16, 32)))

    def run(steps: int, flow: bool = kind == "flow") -> dict[str, Any]:
        made = policies.PolicyLesson(data_file, flow, torch.device("cpu"))
        settings = Training(
            tmp_path, steps=steps, batch=64, warmup=5, report=10, device="cpu", fast=False,
            learning_rate=3e-3, averaging=0.999,
        )  # fmt: skip
        train(made, settings)
        saved: dict[str, Any] = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        return saved

    assert run(40)["step"] == 40
    saved = run(80)
    assert [row["step"] for row in saved["rows"]] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert saved["rows"][-1]["loss"] < 0.8 * saved["rows"][0]["loss"]
    policy, *_ = load_policy(tmp_path, "DDPM", 100)
    average = saved["average"]
    assert all(torch.equal(value, average[name]) for name, value in policy.state_dict().items())
    with pytest.raises(InputError, match=f"is of {kind}, not of"):
        run(80, flow=kind != "flow")
