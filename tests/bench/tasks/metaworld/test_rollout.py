"""Closed loop on the real environment with LeRobot's real classes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn.certify.calibrate import calibrate
from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.tasks.metaworld import rollout
from muninn_bench.tasks.metaworld.policy import features
from muninn_bench.tasks.metaworld.subjects import VARIANTS, Subject
from muninn_bench.tasks.metaworld.world import TEST, PickPlace, draw_problem

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
pytest.importorskip("metaworld.envs")

CALLS = 3


@pytest.fixture(autouse=True)
def short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "STEP_LIMIT", 8 * CALLS)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray[Any, Any]]:
    """Actions that the environment is given from now on."""
    actions: list[np.ndarray[Any, Any]] = []
    step = PickPlace.step

    def recorded(world: PickPlace, action: Any) -> Any:
        actions.append(np.asarray(action))
        return step(world, action)

    monkeypatch.setattr(PickPlace, "step", recorded)
    return actions


def test_lock_step_is_lerobots_own_queue(models: Path, executed: list[Any]) -> None:
    subject = Subject.load(models, "ddim16")
    (episode,) = rollout.roll_out(subject, subject.full(), TEST, 1, seed=7)
    ours, executed[:] = list(executed), []
    assert len(episode.contexts) == CALLS and episode.evaluations == [16] * CALLS
    policy, world = subject.policy, PickPlace()
    policy.reset()
    observation = world.reset(draw_problem(TEST, 0))
    for step in range(8 * CALLS):
        noise = subject.planner.draw_noise(seeds=[call_seed(7, 0, step // 8)]).initial
        seen = features(torch.from_numpy(observation[None].astype(np.float32)))
        action = policy.select_action(subject.preprocessor(seen), noise=noise)
        observation, _ = world.step(subject.postprocessor(action)[0].numpy())
    assert np.array_equal(ours, executed)


def test_episodes_are_paired_and_a_shadow_measures_every_call(models: Path) -> None:
    subject = Subject.load(models, "ddim16")
    few = Alternative.untuned("fewsteps", subject.planner, 4).run(subject.planner)
    full = rollout.roll_out(subject, subject.full(), TEST, 2, seed=1, shadow=subject.full())
    other = rollout.roll_out(subject, few, TEST, 2, seed=1, shadow=subject.full())
    for mine, theirs in zip(full, other, strict=True):
        assert mine.deviation == [0.0] * CALLS and theirs.evaluations == [4] * CALLS
        assert torch.equal(mine.contexts[0], theirs.contexts[0]) and min(theirs.deviation) > 0.0
    assert not torch.equal(full[0].contexts[0], full[1].contexts[0])
    drawn = rollout.random_contexts(full, 3)
    assert torch.equal(drawn[1], full[1].contexts[full[1].random_call(3, 1)])


def test_a_stochastic_chain_is_compared_with_ddim_of_the_same_weights(models: Path) -> None:
    subject = Subject.load(models, "ddpm100")
    context = torch.zeros(1, 20)
    noise = subject.planner.draw_noise(seeds=[0])
    deterministic = Subject.load(models, "ddim100")
    found = subject.deterministic().sample(context, noise=noise)
    assert torch.equal(found, deterministic.planner.sample(context, noise=noise))
    assert deterministic.deterministic() is deterministic.planner
    with pytest.raises(InputError, match=", ".join(VARIANTS)):
        Subject.load(models, "ddim50")


@pytest.mark.parametrize("variant", ["ddim16", "flow10"])
def test_a_study_certifies_compares_and_is_taken_up_again(
    variant: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muninn_bench.tasks.metaworld import study

    monkeypatch.setattr(rollout, "STEP_LIMIT", 8)
    flow = variant == "flow10"
    # Tuning takes a minute; a family of one plan does here.
    family = Family(Forecast("sample", 1, True), (Everywhere(), Static((0, 1, 3, 6, 9))), "static")
    if variant == "ddim16":
        family = replace(family, plans=(Everywhere(), Static((0, 1, 4, 9, 15))))
    monkeypatch.setattr(study, "calibrate", partial(calibrate, family=family))
    sizes = study.Sizes(calibration=30, episodes=3, timed=2, confidence=None)

    def run(tolerance: float = 1.0) -> dict[str, Any]:
        return study.run_study(
            models, tmp_path / "out", tmp_path / "raw", variant=variant, sizes=sizes,
            tolerance=tolerance, risk=0.25, seed=0, command="muninn bench", progress=False,
        )  # fmt: skip

    result = run()
    names = [method["name"] for method in result["methods"]]
    assert names == ["full", "muninn", "fewsteps", "dpmsolver", "unipc"][: 5 - 2 * flow]
    spent = math.ceil(result["methods"][1]["evaluations_mean"])
    for method in result["methods"][2:]:
        assert method["evaluations_mean"] == len(method["tuned"]["timesteps"]) == spent
        assert method["tuned"]["calls"] >= 16
        assert flow or method["tuned"]["timesteps"][-1] == 0
    full = result["methods"][0]
    assert full["deviation_p95"] == 0.0 and full["evaluations_mean"] == result["steps"]
    assert result["single_calls"]["full_against_itself_max"] < 1e-3
    assert result["loop"] == "open" and result["closed_loop"]["calls"] == 3
    assert json.loads((tmp_path / "out" / f"{variant}.json").read_text()) == result
    assert len((tmp_path / "out" / "summary.csv").read_text().splitlines()) == len(names) + 1
    made = (tmp_path / "out" / f"{variant}.muninn.safetensors").stat().st_mtime_ns
    run()
    assert (tmp_path / "out" / f"{variant}.muninn.safetensors").stat().st_mtime_ns == made
    with pytest.raises(InputError, match="delete it or choose another folder"):
        run(tolerance=2.0)
