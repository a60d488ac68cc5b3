"""examples/lerobot_quickstart.py runs from a checkpoint to a faster policy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from muninn.adapters import enable_cache
from muninn.certify.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
pytest.importorskip("metaworld.envs")

EXAMPLE = Path(__file__).parents[4] / "examples" / "lerobot_quickstart.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), "--policy", "policy", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def test_the_quickstart_calibrates_and_compares(tmp_path: Path) -> None:
    from muninn_bench.networks.runs import Runs
    from muninn_bench.tasks.metaworld.policy import (
        load_policy,
        make_policy,
        make_processors,
        save_policy,
    )

    generator = np.random.default_rng(0)
    # Small actions: a forecast of an untrained network then stays within the example's limits.
    seen, acted = generator.uniform(-0.3, 0.9, (50, 39)), generator.uniform(-0.1, 0.1, (50, 4))
    frames = np.concatenate([seen, acted], axis=1).astype(np.float32)
    demonstrations = Runs(frames, np.array([0, 50]), 1.0 / 80.0, 3, 39)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = make_policy(down_dims=(8, 16))
    # A short deterministic chain is tuned in seconds.
    policy.config.noise_scheduler_type, policy.config.num_inference_steps = "DDIM", 12
    save_policy(tmp_path / "policy", policy, *make_processors(policy, demonstrations))
    result = run(tmp_path, "--episodes", "32", "--calls", "3", "--risk", "0.25")
    assert result.returncode == 0, result.stderr
    assert "at most 25.0% of new calls" in result.stdout and "(open loop)" in result.stdout
    full = re.search(r"LeRobot +(\d+) +[\d.]+\n", result.stdout)
    cached = re.search(r"with the cache +([\d.]+) +[\d.]+\n", result.stdout)
    certificate = Certificate.load(tmp_path / "quickstart.muninn.safetensors")
    assert certificate.member > 0 and "Only full compute" not in result.stdout
    assert full and cached and int(full[1]) == 12 and 2 <= float(cached[1]) < 12
    assert certificate.metric == "executed_actions:1-8:within:0+1+2=0.1,3=0.1"
    assert sum(certificate.counts.values()) == 32
    enable_cache(load_policy(tmp_path / "policy", "DDIM", 12)[0], certificate)


def test_without_a_policy_it_says_where_one_comes_from(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 1
    assert "policy holds no policy; docs/guides/metaworld.md trains one" in result.stderr
