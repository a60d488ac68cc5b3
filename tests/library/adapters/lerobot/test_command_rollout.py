"""``lerobot-rollout`` itself (LeRobot 0.6) drives a robot with a cached policy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checkpoint_cases import certify_pusht, pusht_policy, run_module, save_smolvla
from muninn.adapters.lerobot.commands import CERTIFICATE

pytest.importorskip("transformers")
pytest.importorskip("lerobot.rollout", reason="lerobot-rollout came with LeRobot 0.6")

pytestmark = pytest.mark.slow

ROBOT = '''
"""A robot without motors: it is where it was told to be."""

from dataclasses import dataclass

import numpy as np
from lerobot.robots import Robot, RobotConfig


@RobotConfig.register_subclass("drift")
@dataclass(kw_only=True)
class DriftConfig(RobotConfig):
    pass


class Drift(Robot):
    config_class, name = DriftConfig, "drift"
    cameras = {}
    is_connected = is_calibrated = True
    observation_features = {"a.pos": float, "b.pos": float, "c.pos": float, "front": (32, 32, 3)}
    action_features = {"a.pos": float, "b.pos": float}

    def connect(self, calibrate=True):
        print("robot connected")
        self.at = {"a.pos": 0.0, "b.pos": 0.0, "c.pos": 0.0}

    def get_observation(self):
        return {**self.at, "front": np.zeros((32, 32, 3), np.uint8)}

    def send_action(self, action):
        print("robot moves")
        self.at.update(action)
        return action

    def calibrate(self): ...
    def configure(self): ...
    def disconnect(self): ...
'''


def roll_out(folder: Path, checkpoint: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With the robot as a plugin, as LeRobot finds those of other packages."""
    described = folder / "lerobot_robot_drift-1.0.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: lerobot_robot_drift\n")
    (folder / "lerobot_robot_drift.py").write_text(ROBOT)
    return run_module(
        folder,
        "muninn.cli",
        "lerobot",
        "rollout",
        f"--policy.path={checkpoint}",
        "--robot.type=drift",
        "--robot.id=drift",
        "--task=pick place",
        "--fps=20",
        "--duration=3",
        *arguments,
        plugins=folder,
    )


def test_the_real_command_plans_with_the_cache(tmp_path: Path) -> None:
    result = roll_out(tmp_path, save_smolvla(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "muninn: SmolVLAPolicy plans with the cache of" in result.stdout
    assert result.stdout.count("robot moves") > 4
    assert "5.0 of 10 evaluations each\n" in result.stdout


def test_what_cannot_be_certified_ends_it_before_the_robot_is_connected(tmp_path: Path) -> None:
    checkpoint = save_smolvla(tmp_path)
    for argument, message in [
        ("--inference.type=rtc", "error: real-time chunking (RTC)"),
        ("--use_torch_compile=true", "error: the loop is compiled"),
        ("--task=pick", "error: the certificate was made for another planner"),
    ]:
        if "program" in message:
            certify_pusht(pusht_policy()).save(checkpoint / CERTIFICATE)
        result = roll_out(tmp_path, checkpoint, argument)
        assert result.returncode == 2 and message in result.stdout, result.stdout + result.stderr
        assert "robot connected" not in result.stdout
