"""The code of docs/guides/lerobot.md runs as printed, on policies where it looks for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import smolvla_cases
from checkpoint_cases import pick_place_frames, save_pick_place, save_smolvla
from muninn.adapters import is_cache_enabled
from muninn.adapters.lerobot.commands import CERTIFICATE
from muninn.certify.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

ROOT = Path(__file__).parents[4]
POLICY = Path("models/metaworld/diffusion")


def blocks() -> list[str]:
    guide = (ROOT / "docs" / "guides" / "lerobot.md").read_text()
    found = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(found) == 3
    return found


def test_the_guide_calibrates_a_policy_and_enables_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_pick_place(POLICY)
    dataset = pick_place_frames(episodes=110, steps=3)
    seen = {key: value for key, value in dataset[0].items() if key.startswith("observation.")}
    names: dict[str, Any] = {"dataset": dataset, "observation": seen}
    for block in blocks()[:2]:
        exec(block, names)
    saved = Certificate.load(POLICY / CERTIFICATE)
    assert saved.metric == "executed_actions:1-8:within:0+1+2=0.1,3=0.1"
    assert sum(saved.counts.values()) == 110
    evaluations, seconds = capsys.readouterr().out.splitlines()[-1].split()
    most = saved.program.most_evaluations(12)
    assert 2 <= int(evaluations.strip("[]")) <= most and float(seconds) > 0.0
    assert tuple(names["action"].shape) == (1, 4) and not is_cache_enabled(names["policy"])


def test_its_limits_fit_the_bundled_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    loaded, _, _ = blocks()[0].partition("contexts = ")
    (limits,) = re.findall(r"executed_actions\(.*\)", blocks()[0])
    names: dict[str, Any] = {}
    exec(f"{loaded}\nmetric = {limits}", names)
    plans = torch.zeros(2, 16, 4)
    assert names["metric"](plans, plans).tolist() == [0.0, 0.0]


def test_the_guide_calibrates_smolvla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (path,) = re.findall(r'checkpoint = "(.*)"', blocks()[2])
    Path(path).parent.mkdir(parents=True)
    save_smolvla(tmp_path).rename(path)
    (Path(path) / CERTIFICATE).unlink()

    def raw(seed: int, rows: int) -> dict[str, Any]:
        seen = smolvla_cases.observation(seed, rows)
        told = {key: value for key, value in seen.items() if "language" not in key}
        return {**told, "task": ["pick" if row % 2 else "pick place" for row in range(rows)]}

    seen = raw(0, 110)
    dataset = [{key: values[row] for key, values in seen.items()} for row in range(110)]
    names: dict[str, Any] = {"dataset": dataset, "observation": raw(9, 1)}
    exec(blocks()[2], names)
    policy = names["policy"]
    assert is_cache_enabled(policy) and (Path(path) / CERTIFICATE).is_file()
    assert tuple(names["actions"].shape) == (1, smolvla_cases.CHUNK, 2)
    assert 2 <= int(policy.muninn.last.evaluations[0]) <= 10
    assert names["certificate"].metric == "executed_actions:0-3:within:1,1"
