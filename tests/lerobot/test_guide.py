"""The code of docs/guides/lerobot.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lerobot_cases import ACTION, STATE, make_policy, observation
from muninn.adapters import is_cache_enabled
from muninn.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "lerobot.md"


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
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    saved = Certificate.load("policy.muninn.safetensors")
    assert saved.metric == "executed_actions:1-8:within:0.002,0.002"
    evaluations, seconds = capsys.readouterr().out.splitlines()[-1].split()
    assert 2 <= int(evaluations.strip("[]")) <= 16 and float(seconds) > 0.0
    assert tuple(names["action"].shape) == (1, ACTION) and not is_cache_enabled(policy)
