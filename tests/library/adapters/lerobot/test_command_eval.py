"""``lerobot-eval`` itself, on PushT, with a certificate beside its checkpoint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checkpoint_cases import certify_pusht, pusht_policy, rewards, run_module, save_pusht

pytest.importorskip("lerobot.scripts.lerobot_eval")
pytest.importorskip("gym_pusht")

pytestmark = pytest.mark.slow

CACHED = "muninn.cli", "lerobot", "eval"


def evaluate(
    checkpoint: Path, out: str, *command: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = checkpoint.parent
    result = run_module(
        folder,
        *command,
        f"--policy.path={checkpoint}",
        "--env.type=pusht",
        "--env.obs_type=environment_state_agent_pos",
        "--env.episode_length=20",
        "--eval.n_episodes=2",
        "--eval.batch_size=2",
        "--eval.use_async_envs=false",
        f"--output_dir={out}",
    )
    return folder / out, result


def test_the_real_command_plans_with_the_cache(tmp_path: Path) -> None:
    checkpoint = save_pusht(tmp_path / "pretrained_model")
    out, result = evaluate(checkpoint, "cached", *CACHED)
    assert result.returncode == 0, result.stderr
    assert "muninn: DiffusionPolicy plans with the cache of" in result.stdout
    assert result.stdout.endswith("muninn: 6 plans, 5.0 of 20 evaluations each\n")
    assert len(rewards(out)) == 2


def test_a_certificate_of_another_policy_ends_it_or_leaves_it_as_it_is(tmp_path: Path) -> None:
    foreign = certify_pusht(pusht_policy(seed=1))
    checkpoint = save_pusht(tmp_path / "pretrained_model", foreign)
    plain, result = evaluate(checkpoint, "plain", "lerobot.scripts.lerobot_eval")
    assert result.returncode == 0, result.stderr
    full, result = evaluate(checkpoint, "full", *CACHED[:2], "--on-mismatch", "full", CACHED[2])
    assert result.returncode == 0, result.stderr
    assert "20.0 of 20 evaluations each; 6 by full compute: " in result.stdout
    assert rewards(full) == rewards(plain) and max(rewards(plain)) > 0.0
    error, result = evaluate(checkpoint, "error", *CACHED)
    assert result.returncode == 2 and not (error / "eval_info.json").exists()
    assert "error: the certificate was made for another planner: model.weights" in result.stdout
