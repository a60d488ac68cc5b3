"""The code of docs/guides/lerobot.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import smolvla_cases
from lerobot_cases import ACTION, STATE, make_policy, observation
from muninn.adapters import is_cache_enabled
from muninn.certify.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "lerobot.md"


def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(found) == 3
    return found


def test_the_guide_calibrates_a_policy_and_enables_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    monkeypatch.chdir(tmp_path)
    policy = make_policy(noise_scheduler_type="DDIM", num_inference_steps=16)
    statistics = {
        "observation.state": {"min": -torch.ones(STATE), "max": torch.ones(STATE)},
        "action": {"min": -torch.ones(ACTION), "max": torch.ones(ACTION)},
    }
    preprocessor, postprocessor = make_diffusion_pre_post_processors(policy.config, statistics)
    batches = [
        {key: torch.stack([value] * 2, dim=1) for key, value in observation(seed, 40).items()}
        for seed in range(3)
    ]
    names = {
        "policy": policy,
        "preprocessor": preprocessor,
        "postprocessor": postprocessor,
        "batches": batches,
        "observation": observation(9),
    }
    for block in blocks()[:2]:
        exec(block, names)
    saved = Certificate.load("policy.muninn.safetensors")
    assert saved.metric == "executed_actions:1-8:within:0.002,0.002"
    evaluations, seconds = capsys.readouterr().out.splitlines()[-1].split()
    most = saved.program.most_evaluations(16)
    assert 2 <= int(evaluations.strip("[]")) <= most and float(seconds) > 0.0
    assert tuple(names["action"].shape) == (1, ACTION) and not is_cache_enabled(policy)


def test_the_guide_calibrates_smolvla(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

    policy = smolvla_cases.make_policy(
        smolvla_cases.save_vlm(tmp_path), pad_language_to="max_length"
    )
    deviations = {"mean": torch.zeros(ACTION), "std": torch.full((ACTION,), 0.1)}
    statistics = {
        "observation.state": {"mean": torch.zeros(3), "std": torch.ones(3)},
        "action": deviations,
    }
    preprocessor, postprocessor = make_smolvla_pre_post_processors(policy.config, statistics)

    def raw(seed: int, rows: int) -> dict[str, object]:
        seen = smolvla_cases.observation(seed, rows)
        told = {key: value for key, value in seen.items() if "language" not in key}
        return {**told, "task": ["pick" if row % 2 else "pick place" for row in range(rows)]}

    names = {
        "policy": policy,
        "preprocessor": preprocessor,
        "postprocessor": postprocessor,
        "batches": [raw(seed, 40) for seed in range(3)],
        "observation": raw(9, 1),
    }
    exec(blocks()[2], names)
    assert is_cache_enabled(policy)
    assert tuple(names["actions"].shape) == (1, smolvla_cases.CHUNK, ACTION)
    assert 2 <= int(policy.muninn.last.evaluations[0]) <= 10
    assert names["certificate"].metric == "executed_actions:0-3:within:0.002,0.002"
