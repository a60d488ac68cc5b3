"""LeRobot's real classes: processors, checkpoints, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn_bench.tasks.metaworld.data import Demonstrations
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
    demonstrations: Demonstrations,
) -> None:
    preprocessor, postprocessor = make_processors(make_policy((16, 32)), demonstrations)
    actions = torch.from_numpy(demonstrations.actions)
    seen = features(torch.from_numpy(demonstrations.observations))
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
    models: Path, demonstrations: Demonstrations
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
    seen = features(torch.from_numpy(demonstrations.observations))
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
    from muninn_bench.tasks.metaworld import train

    monkeypatch.setattr(train, "make_policy", lambda: make_policy((16, 32)))

    def trainer(steps: int) -> Any:
        return train.Trainer(
            train.Training(
                data_file,
                tmp_path,
                kind,
                steps,
                batch=64,
                warmup=5,
                report=10,
                device="cpu",
                learning_rate=3e-3,
            )
        )

    first = trainer(40)
    first.run()
    second = trainer(80)
    assert second.step == 40 and second.spent == 0.5
    for here, there in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(here, there)
    second.run()
    assert [row["step"] for row in second.rows] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert second.rows[-1]["loss"] < 0.8 * second.rows[0]["loss"]
    policy, *_ = load_policy(tmp_path, "DDPM", 100)
    average = second.average.state_dict()
    assert all(torch.equal(value, average[name]) for name, value in policy.state_dict().items())
    assert not np.allclose(
        *(next(one.parameters()).detach() for one in (policy, second.policy)), atol=1e-7
    )
    other = "flow" if kind == "diffusion" else "diffusion"
    with pytest.raises(InputError, match=f"belongs to a {kind} policy"):
        train.Trainer(train.Training(data_file, tmp_path, other, device="cpu"))
