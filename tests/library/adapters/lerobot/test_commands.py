"""Policies that LeRobot loads plan with the certificate beside their checkpoint."""

from __future__ import annotations

import copy
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lerobot_cases
from lerobot_cases import certify, observation
from muninn.adapters import enable_cache, is_cache_enabled
from muninn.adapters.lerobot.commands import CERTIFICATE, COMMANDS, certified, run
from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, InputError

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")


def make_policy(seed: int = 0) -> Any:
    return lerobot_cases.make_policy(seed, num_inference_steps=20)


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certify(make_policy())


@pytest.fixture
def checkpoint(tmp_path: Path, certificate: Certificate) -> Path:
    make_policy().save_pretrained(tmp_path / "pretrained_model")
    certificate.save(tmp_path / "pretrained_model" / CERTIFICATE)
    return tmp_path / "pretrained_model"


def load(checkpoint: str | Path, **rest: Any) -> Any:
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    return DiffusionPolicy.from_pretrained(checkpoint, **rest)


def act(policy: Any) -> Tensor:
    policy.reset()
    torch.manual_seed(5)
    return torch.cat([policy.select_action(observation(step)) for step in range(9)])


def untouched(policy: Any) -> bool:
    return not {"to", "muninn"} & set(vars(policy)) and "conditional_sample" not in vars(
        policy.diffusion
    )


def test_a_loaded_policy_plans_with_the_certificate_beside_it(
    checkpoint: Path, certificate: Certificate
) -> None:
    expected, told = make_policy(), list[str]()
    enable_cache(expected, certificate)
    with certified(tell=told.append) as tallies:
        policy = load(checkpoint)
        assert not is_cache_enabled(policy) and not told
        assert policy.to("cpu") is policy
        assert is_cache_enabled(policy) and "to" not in vars(policy)
        assert torch.equal(act(policy), act(expected))
    (sentence,), (tally,) = told, tallies
    assert sentence.startswith(
        f"DiffusionPolicy plans with the cache of {checkpoint / CERTIFICATE}"
    )
    assert certificate.promise() in sentence
    assert str(tally) == "2 plans, 5.0 of 20 evaluations each"
    assert untouched(load(checkpoint))  # outside


def test_a_policy_that_is_not_moved_is_compared_when_it_plans(checkpoint: Path) -> None:
    with certified() as tallies:
        policy = load(checkpoint)
        assert not tallies
        act(policy)
    assert is_cache_enabled(policy) and "to" not in vars(policy) and tallies[0].plans == 2


def test_a_copy_before_that_is_plain(checkpoint: Path) -> None:
    with certified():
        copied = copy.deepcopy(load(checkpoint).diffusion)
        assert torch.equal(
            copied.unet.final_conv[1].weight, make_policy().diffusion.unet.final_conv[1].weight
        )
        torch.manual_seed(0)
        plan = copied.conditional_sample(1, global_cond=torch.zeros(1, 10))
        torch.manual_seed(0)
        own = make_policy().diffusion.conditional_sample(1, global_cond=torch.zeros(1, 10))
        assert torch.equal(plan, own)


def test_without_a_certificate_it_is_an_error_or_full_compute_and_a_warning(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = checkpoint.parent / "own.safetensors"
    (checkpoint / CERTIFICATE).rename(elsewhere)
    with certified(), pytest.raises(CertificateError, match=r"holds no muninn\.safetensors"):
        load(checkpoint)
    with certified(on_mismatch="full") as tallies, caplog.at_level(logging.WARNING, "muninn"):
        policy = load(checkpoint).to("cpu")
    assert untouched(policy) and not tallies
    assert "running full compute" in caplog.text and str(checkpoint) in caplog.text
    with certified(elsewhere):
        assert is_cache_enabled(load(checkpoint).to("cpu"))
    elsewhere.write_bytes(b"no certificate")
    with certified(elsewhere), pytest.raises(CertificateError, match=r"own\.safetensors"):
        load(checkpoint)
    told: list[str] = []
    with certified(elsewhere, on_mismatch="full", tell=told.append):
        policy = load(checkpoint).to("cpu")
    assert "full compute, because" in told[0] and torch.equal(act(policy), act(make_policy()))


def test_a_certificate_of_another_policy_is_an_error_at_every_call_or_full_compute(
    checkpoint: Path,
) -> None:
    other = make_policy(seed=1)
    other.save_pretrained(checkpoint)
    with certified() as tallies:
        policy = load(checkpoint)
        with pytest.raises(CertificateError, match=r"made for another planner: model\.weights"):
            policy.to("cpu")
        for _ in range(2):  # a server goes on after the first
            with pytest.raises(CertificateError, match=r"model\.weights"):
                act(policy)
    assert not tallies and not is_cache_enabled(policy)
    with certified(on_mismatch="full") as tallies:
        policy = load(checkpoint).to("cpu")
        assert torch.equal(act(policy), act(other))
    assert "2 plans, 20.0 of 20 evaluations each; 2 by full compute: " in str(tallies[0])
    assert "model.weights" in str(tallies[0])


def test_a_policy_from_the_hub_brings_its_certificate(checkpoint: Path, tmp_path: Path) -> None:
    def store(name: str, *left_out: str) -> None:
        folder, commit = tmp_path / "hub" / f"models--lab--{name}", "0" * 40
        shutil.copytree(checkpoint, folder / "snapshots" / commit)
        for file in left_out:
            (folder / "snapshots" / commit / file).unlink()
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)

    store("certified")
    store("plain", CERTIFICATE)
    given = {"cache_dir": tmp_path / "hub", "local_files_only": True}
    with certified():
        assert is_cache_enabled(load("lab/certified", **given).to("cpu"))
        with pytest.raises(CertificateError, match=r"lab/plain holds no muninn\.safetensors"):
            load("lab/plain", **given)


def test_what_cannot_be_done_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(InputError, match=r"'error' or 'full', got 'ful'"),
        certified(on_mismatch="ful"),
    ):
        raise AssertionError
    with pytest.raises(InputError, match=r"train is no command.*eval, record, rollout, policy-s"):
        run("train", [])
    monkeypatch.setitem(COMMANDS, "rollout", "lerobot.scripts.of_tomorrow:main")
    with pytest.raises(InputError, match=r"rollout cannot be imported.*of_tomorrow.*0\.6 has eval"):
        run("rollout", [])


def test_a_command_gets_its_own_arguments_and_one_without_a_policy_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, seen, told = sys.argv, list[str](), list[str]()
    monkeypatch.setitem(COMMANDS, "eval", "lerobot_cases:main")
    monkeypatch.setattr(lerobot_cases, "main", lambda: seen.extend(sys.argv), raising=False)
    run("eval", ["--steps=3"], tell=told.append)
    assert seen == ["lerobot-eval", "--steps=3"] and told == ["no cache was switched on"]
    assert sys.argv is before
