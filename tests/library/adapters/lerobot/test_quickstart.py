"""examples/lerobot_quickstart.py runs from a checkpoint to a faster policy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint_cases import pick_place_frames, save_pick_place
from muninn.adapters import enable_cache
from muninn.certify.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

EXAMPLE = Path(__file__).parents[4] / "examples" / "lerobot_quickstart.py"
SMALL = "--episodes", "32", "--calls", "3", "--risk", "0.25"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), "--policy", "policy", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def judged(result: subprocess.CompletedProcess[str], folder: Path) -> Certificate:
    """The certificate that a run wrote; it says how much faster it is."""
    assert result.returncode == 0, result.stderr
    assert "at most 25.0% of new calls" in result.stdout and "(open loop)" in result.stdout
    full = re.search(r"LeRobot +(\d+) +[\d.]+\n", result.stdout)
    cached = re.search(r"with the cache +([\d.]+) +[\d.]+\n", result.stdout)
    certificate = Certificate.load(folder / "quickstart.muninn.safetensors")
    assert certificate.member > 0 and "Only full compute" not in result.stdout
    assert full and cached and int(full[1]) == 12 and 2 <= float(cached[1]) < 12
    assert sum(certificate.counts.values()) == 32
    return certificate


def test_the_quickstart_calibrates_and_compares(tmp_path: Path) -> None:
    pytest.importorskip("metaworld.envs")
    from muninn_bench.tasks.metaworld.policy import load_policy

    save_pick_place(tmp_path / "policy")
    certificate = judged(run(tmp_path, *SMALL), tmp_path)
    assert certificate.metric == "executed_actions:1-8:within:0+1+2=0.1,3=0.1"
    enable_cache(load_policy(tmp_path / "policy", "DDIM", 12)[0], certificate)


def test_it_takes_a_dataset_and_limits_of_ones_own(tmp_path: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    save_pick_place(tmp_path / "policy")
    features = {
        key: {"dtype": "float32", "shape": (size,), "names": None}
        for key, size in (("observation.state", 4), ("observation.environment_state", 6))
    }
    dataset = LeRobotDataset.create(
        "local/episodes", 10, features, root=tmp_path / "episodes", use_videos=False
    )
    for frame in pick_place_frames(episodes=35, steps=1):
        dataset.add_frame({key: frame[key] for key in features} | {"task": "pick"})
        dataset.save_episode()
    dataset.finalize()
    own = "--dataset", "episodes", "--limits", "0.1", "0.1", "0.1", "0.2"
    result = run(tmp_path, *SMALL, *own)
    assert judged(result, tmp_path).metric == "executed_actions:1-8:within:0.1,0.1,0.1,0.2"
    assert "a difference of [0.1, 0.1, 0.1, 0.2] in the channels" in result.stdout
    result = run(tmp_path, *SMALL, *own[:2])
    assert result.returncode == 1 and "--dataset needs --limits" in result.stderr


def test_without_a_policy_it_says_where_one_comes_from(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 1
    assert "policy holds no policy; docs/guides/metaworld.md trains one" in result.stderr
