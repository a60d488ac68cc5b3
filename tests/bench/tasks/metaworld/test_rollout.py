"""Closed loop on the real environment with LeRobot's real classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
pytest.importorskip("metaworld.envs")

from muninn.certify.paired import call_seed
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn.programs.spacing import trained_states
from muninn_bench.measure.alternatives import Alternative, available
from muninn_bench.measure.protocol import plain
from muninn_bench.measure.rollout import random_contexts, roll_out
from muninn_bench.studies.certified import Certified, Sizes
from muninn_bench.studies.compare import compare
from muninn_bench.task import Stream
from muninn_bench.tasks.metaworld import task as module
from muninn_bench.tasks.metaworld.policy import features
from muninn_bench.tasks.metaworld.task import STREAMS, MetaWorld
from muninn_bench.tasks.metaworld.world import PickPlace, draw_problem

CALLS = 3


@pytest.fixture
def task(models: Path, monkeypatch: pytest.MonkeyPatch) -> MetaWorld:
    """The task on small untrained policies, its episodes cut short."""
    monkeypatch.setattr(module, "STEP_LIMIT", 8 * CALLS)
    monkeypatch.setattr(module, "model_file", lambda name: models / Path(name).name)
    return MetaWorld()


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


def test_lock_step_is_lerobots_own_queue(task: MetaWorld, executed: list[Any]) -> None:
    planner = task.planner("ddim16")
    (drive,) = roll_out(task, "ddim16", plain(planner), Stream.TEST, 1, seed=7)
    ours, executed[:] = list(executed), []
    assert len(drive.contexts) == CALLS and drive.evaluations == [16] * CALLS
    policy, preprocessor, postprocessor, _ = task._load("ddim16")
    world = PickPlace()
    policy.reset()
    observation = world.reset(draw_problem(STREAMS[Stream.TEST], 0))
    for step in range(8 * CALLS):
        noise = planner.draw_noise(seeds=[call_seed(7, 0, step // 8)]).initial
        seen = features(torch.from_numpy(observation[None].astype(np.float32)))
        action = policy.select_action(preprocessor(seen), noise=noise)
        observation, _ = world.step(postprocessor(action)[0].numpy())
    assert np.array_equal(ours, executed)


def test_episodes_are_paired_and_a_shadow_measures_every_call(task: MetaWorld) -> None:
    planner, metric = task.planner("ddim16"), task.metric("ddim16")
    run, shadow = plain(planner), (plain(planner), metric)
    few = Alternative.untuned("fewsteps", planner, 4).run(planner)
    full = roll_out(task, "ddim16", run, Stream.TEST, 2, seed=1, shadow=shadow)
    other = roll_out(task, "ddim16", few, Stream.TEST, 2, seed=1, shadow=shadow)
    for mine, theirs in zip(full, other, strict=True):
        assert mine.deviation == [0.0] * CALLS and theirs.evaluations == [4] * CALLS
        assert torch.equal(mine.contexts[0], theirs.contexts[0]) and min(theirs.deviation) > 0.0
    assert not torch.equal(full[0].contexts[0], full[1].contexts[0])
    drawn = random_contexts(full, 3)
    assert torch.equal(drawn[1:2], full[1].contexts[full[1].random_call(3, 1)])


def test_every_sampler_is_compared_with_alternatives_of_its_own(task: MetaWorld) -> None:
    """Of DDPM with fewer ancestral steps on its own noise: on all steps they are the sampler."""
    offered = {variant: available(task.planner(variant)) for variant in task.variants}
    assert offered["ddpm100"] == ("fewsteps", "dpmsolver")
    assert offered["ddim16"] == offered["ddim100"] == ("fewsteps", "dpmsolver", "unipc", "taylor")
    assert offered["flow10"] == ("fewsteps", "taylor", "adams", "heun")
    planner, context = task.planner("ddpm100"), torch.zeros(1, 20)
    noise = planner.draw_noise(seeds=[0])
    every = Alternative.untuned("fewsteps", planner, 100).sample(planner)(context, noise=noise)
    torch.testing.assert_close(every, planner.sample(context, noise=noise), atol=1e-4, rtol=0.0)
    trained = trained_states(task.planner("ddim16").sampler)
    assert len(trained) == 91 and trained[0].timestep == 90


@pytest.mark.parametrize("variant", ["ddim16", "flow10"])
def test_the_comparison_runs_on_lerobots_objects(
    variant: str, task: MetaWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP_LIMIT", 8)
    flow = variant == "flow10"
    # Tuning takes a minute; a family of one plan does here.
    anchors = (0, 1, 3, 6, 9) if flow else (0, 1, 4, 9, 15)
    family = Family.of(Forecast("sample", 1, True), (Everywhere(), Static(anchors)), "static")
    sizes = Sizes(calibration=30, episodes=3, timed=2, tuning=16, confidence=None)
    study = Certified(task, variant, tmp_path, sizes, risk=0.25, family=family, progress=False)
    result = compare(study, study.certify(), "muninn-bench compare")
    names = [method["name"] for method in result["methods"]]
    solvers = ["adams", "heun"] if flow else ["dpmsolver", "unipc"]
    assert names == ["full", "muninn", "fewsteps", *solvers]
    for method in result["methods"][2:]:
        assert method["evaluations_mean"] == len(method["tuned"]["timesteps"])
        assert flow or method["tuned"]["timesteps"][-1] == 0
    assert result["single_calls"]["full_against_itself_max"] < 1e-3
    assert result["loop"] == "open" and result["closed_loop"]["calls"] == 3
