"""The code of docs/guides/calibration.md runs as printed, but for the number of episodes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import muninn
from lerobot_cases import make_policy

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
gymnasium = pytest.importorskip("gymnasium")

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "calibration.md"
STATE, ACTION = 3, 7


class Reach(gymnasium.Env):  # type: ignore[misc, name-defined]
    """One call an episode; the scene lies elsewhere in each."""

    _max_episode_steps = 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        scene = self.np_random.normal(size=2)
        self._seen = {"agent_pos": scene[[0, 1, 0]], "environment_state": scene}
        return self._seen, {}

    def step(self, action: Any) -> Any:
        assert action.shape == (ACTION,)
        return self._seen, 0.0, False, False, {}


def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(found) == 3
    return found


def reach_policy() -> Any:
    """Seven action channels, 8 DDIM steps."""
    from dataclasses import replace

    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    config = make_policy(noise_scheduler_type="DDIM", num_inference_steps=8).config
    action = {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DiffusionPolicy(replace(config, output_features=action, down_dims=(8, 16))).eval()


def test_the_guide_to_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    policy = reach_policy()
    statistics = {
        "observation.state": {"min": -torch.ones(STATE), "max": torch.ones(STATE)},
        "action": {"min": -torch.ones(ACTION), "max": torch.ones(ACTION)},
    }
    preprocessor, postprocessor = make_diffusion_pre_post_processors(policy.config, statistics)
    generator = torch.Generator().manual_seed(0)
    names: dict[str, Any] = {
        "policy": policy,
        "preprocessor": preprocessor,
        "postprocessor": postprocessor,
        "environment": Reach(),
        "dataset": [
            {
                "observation.state": torch.randn(STATE, generator=generator),
                "observation.environment_state": torch.randn(2, generator=generator),
                "episode_index": frame // 10,
            }
            for frame in range(10 * 110)
        ],
        "planner": muninn.Planner(
            lambda x, timestep, context: 0.5 * x + context[:, None],
            muninn.ddim(muninn.Schedule.cosine(20), kind="sample"),
            shape=(4, 2),
        ),
        "scenes": (torch.randn(2, 2, generator=generator) for _ in itertools.count()),
    }
    recorded, driven, iterated = blocks()
    exec(recorded, names)
    first = names["certificate"]
    assert first.loop == "open" and sum(first.counts.values()) == 110
    assert first.metric == "executed_actions:1-8:within:0+1+2=0.002,3+4+5=0.0174533,6=0.1"
    exec(driven.replace("200", "32").replace("risk=0.05", "risk=0.25"), names)
    second = names["certificate"]
    assert second.loop == "closed" and second.unit == "episode"
    assert sum(second.counts.values()) == 32
    exec(iterated, names)
    assert sum(names["certificate"].counts.values()) == 300
    assert "(closed loop)" in capsys.readouterr().out
