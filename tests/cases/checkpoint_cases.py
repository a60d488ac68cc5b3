"""Checkpoints of tiny policies of LeRobot's real classes, as its own commands load them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lerobot_cases
import muninn
import smolvla_cases
from muninn.adapters import planner_of
from muninn.adapters.lerobot.commands import CERTIFICATE
from muninn.certify.certificate import Certificate
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

TABLE = 512.0  # side of PushT's table


def pusht_policy(seed: int = 0) -> Any:
    """For the states of PushT; 20 DDIM steps."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    config = lerobot_cases.make_policy(noise_scheduler_type="DDIM", num_inference_steps=20).config
    seen = {
        "observation.state": PolicyFeature(FeatureType.STATE, (2,)),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (16,)),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DiffusionPolicy(replace(config, input_features=seen)).eval()


def certify_pusht(policy: Any) -> Certificate:
    """Whatever its accuracy: a plan of 5 of 20 steps."""
    plans = Everywhere(), Static((0, 1, 4, 9, 19))
    return muninn.calibrate(
        planner_of(policy),
        torch.randn(60, 2 * (2 + 16), generator=torch.Generator().manual_seed(0)),
        tolerance=1e6,
        risk=0.1,
        family=Family.of(Forecast("sample", 1, True), plans, "static"),
        progress=False,
    )


def save_pusht(folder: Path, certificate: Certificate | None = None, seed: int = 0) -> Path:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    policy = pusht_policy(seed)
    sizes = {"observation.state": 2, "observation.environment_state": 16, "action": 2}
    statistics = {
        key: {"min": torch.zeros(size), "max": torch.full((size,), TABLE)}
        for key, size in sizes.items()
    }
    processors = make_diffusion_pre_post_processors(policy.config, statistics)
    return _save(folder, policy, processors, certificate or certify_pusht(policy))


def save_smolvla(folder: Path) -> Path:
    """With a certificate for 5 of 10 steps."""
    from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

    vlm = smolvla_cases.save_vlm(folder / "vlm")
    policy = smolvla_cases.make_policy(vlm, pad_language_to="max_length")
    statistics = {
        key: {"mean": torch.zeros(size), "std": torch.ones(size)}
        for key, size in (("observation.state", 3), ("action", 2))
    }
    processors = make_smolvla_pre_post_processors(policy.config, statistics)
    return _save(folder / "smolvla", policy, processors, smolvla_cases.certify(policy))


def save_pick_place(folder: Path) -> Path:
    """Shaped as models/metaworld/diffusion, but small and untrained, 12 DDIM steps; no certificate.

    Its actions are small: a forecast stays within the limits of that policy.
    """
    from muninn_bench.networks.runs import Runs
    from muninn_bench.tasks.metaworld.policy import make_policy, make_processors, save_policy

    generator = np.random.default_rng(0)
    seen, acted = generator.uniform(-0.3, 0.9, (50, 39)), generator.uniform(-0.1, 0.1, (50, 4))
    frames = np.concatenate([seen, acted], axis=1).astype(np.float32)
    demonstrations = Runs(frames, np.array([0, 50]), 1.0 / 80.0, 3, 39)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = make_policy(down_dims=(8, 16))
    policy.config.noise_scheduler_type, policy.config.num_inference_steps = "DDIM", 12
    save_policy(folder, policy, *make_processors(policy, demonstrations))
    return folder


def pick_place_frames(episodes: int, steps: int) -> list[dict[str, Any]]:
    """Observations that such a policy takes, as a LeRobotDataset yields them."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "observation.state": torch.rand(4, generator=generator),
            "observation.environment_state": torch.rand(6, generator=generator),
            "episode_index": episode,
        }
        for episode in range(episodes)
        for _ in range(steps)
    ]


def _save(folder: Path, policy: Any, processors: Any, certificate: Certificate) -> Path:
    for part in (policy, *processors):
        part.save_pretrained(folder)
    certificate.save(folder / CERTIFICATE)
    return folder


def run_module(
    folder: Path, *arguments: str, plugins: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """``python -m`` in a folder, one thread, with packages that lie in another."""
    path = os.pathsep.join(filter(None, [str(plugins or ""), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def rewards(folder: Path) -> list[float]:
    """Of every episode that ``lerobot-eval`` ran."""
    found = json.loads((folder / "eval_info.json").read_text())
    collected: list[float] = found["per_task"][0]["metrics"]["sum_rewards"]
    return collected
