"""The planner inside a DiffusionPolicy is its own loop, bit for bit; contexts and metric."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lerobot_cases import ACTION, STATE, conditions, make_policy, observation
from muninn.adapters import planner_of
from muninn.adapters.lerobot import executed_actions, global_conditions
from muninn.adapters.lerobot.diffusion import arguments
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.programs.plan import Program

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

SAMPLERS: list[dict[str, Any]] = [
    {},
    {"prediction_type": "sample"},
    {"num_inference_steps": 13},
    {"clip_sample": False, "beta_schedule": "linear"},
    {"clip_sample_range": 0.7},
    {"noise_scheduler_type": "DDIM", "num_inference_steps": 16},
    {"noise_scheduler_type": "DDIM", "num_inference_steps": 16, "prediction_type": "sample"},
    {"noise_scheduler_type": "DDIM", "num_inference_steps": 100},
]
BATCH = 3


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)  # tells -0.0 from 0.0


@pytest.mark.parametrize("settings", SAMPLERS, ids=str)
def test_full_compute_is_the_policys_own_loop_bit_for_bit(settings: dict[str, Any]) -> None:
    policy, context = make_policy(**settings), conditions(BATCH)
    with torch.no_grad():
        own = policy.diffusion.conditional_sample(BATCH, global_cond=context, generator=seeded())
    planner = planner_of(policy)
    assert len(planner.sampler) == policy.diffusion.num_inference_steps
    ours = planner.sample(context, noise=planner.draw_noise(BATCH, generator=seeded()))
    assert torch.equal(bits(ours), bits(own))
    full = Runtime(planner, Program.full(planner.sampler.kind))
    through_runtime, _ = full(context, generator=seeded())
    assert torch.equal(bits(through_runtime), bits(own))


@pytest.mark.parametrize("settings", SAMPLERS[:1] + SAMPLERS[5:6], ids=str)
def test_given_noise_and_the_global_generator_are_used_as_the_loop_uses_them(
    settings: dict[str, Any],
) -> None:
    policy, context = make_policy(**settings), conditions(BATCH)
    planner = planner_of(policy)
    start = torch.randn(BATCH, 16, ACTION)
    for given in (None, start):
        torch.manual_seed(3)
        with torch.no_grad():
            own = policy.diffusion.conditional_sample(BATCH, global_cond=context, noise=given)
        after = torch.get_rng_state()
        torch.manual_seed(3)
        told, noise = arguments(planner, BATCH, global_cond=context, noise=given)
        assert torch.equal(torch.get_rng_state(), after)
        assert torch.equal(bits(planner.sample(told, noise=noise)), bits(own))


def test_the_planner_reads_the_policys_scheduler_and_leaves_it_alone() -> None:
    policy = make_policy()
    policy.diffusion.noise_scheduler.set_timesteps(5)
    before = policy.diffusion.noise_scheduler.timesteps.clone()
    planner = planner_of(policy)
    planner.sample(conditions(1))
    assert torch.equal(policy.diffusion.noise_scheduler.timesteps, before)


def test_conditions_are_what_the_loop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    told = []
    own = policy.diffusion.conditional_sample

    def watched(rows: int, **rest: Any) -> Tensor:
        told.append(rest["global_cond"])
        return own(rows, **rest)

    monkeypatch.setattr(policy.diffusion, "conditional_sample", watched)
    first, second = observation(1, BATCH), observation(2, BATCH)
    policy.select_action(dict(first))  # the first observation fills the history
    policy._queues["action"].clear()
    policy.select_action(dict(second))
    history = [
        {key: torch.stack([a[key], b[key]], dim=1) for key in a}
        for a, b in ((first, first), (first, second))
    ]
    assert torch.equal(global_conditions(policy, history), torch.cat(told))


def test_conditions_take_what_the_policys_preprocessor_returns() -> None:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    policy = make_policy()
    span = {"min": torch.full((STATE,), -2.0), "max": torch.full((STATE,), 2.0)}
    preprocessor, _ = make_diffusion_pre_post_processors(policy.config, {"observation.state": span})
    history = {key: torch.stack([value] * 2, dim=1) for key, value in observation(0, BATCH).items()}
    halved = {**history, "observation.state": history["observation.state"] / 2}
    found = global_conditions(policy, [preprocessor(dict(history))])
    torch.testing.assert_close(found, global_conditions(policy, [halved]))


def test_conditions_need_the_history_and_eval_mode() -> None:
    policy = make_policy()
    with pytest.raises(InputError, match=r"shape \(1, 3\).*\(batch, 2, 3\)"):
        global_conditions(policy, [observation(0)])
    with pytest.raises(InputError, match="no batch"):
        global_conditions(policy, [])
    history = {key: torch.stack([value] * 2, dim=1) for key, value in observation(0).items()}
    scene = "observation.environment_state"
    for key in history:
        less = {name: value for name, value in history.items() if name != key}
        with pytest.raises(InputError, match=rf"batch 1 lacks {key}; it has observation\.\w+\."):
            global_conditions(policy, [history, less])
    for wrong, seen in [
        (history[scene][:, :1], r"shape \(1, 1, 2\)"),
        (history[scene][..., :1], r"shape \(1, 2, 1\)"),
        (None, "NoneType"),
    ]:
        with pytest.raises(InputError, match=rf"{scene} of batch 0 .*{seen}.*\(batch, 2, 2\)"):
            global_conditions(policy, [{**history, scene: wrong}])
    with pytest.raises(InputError, match=r"policy\.eval\(\)"):
        global_conditions(policy.train(), [observation(0)])


def test_executed_actions_are_the_queued_ones_in_physical_units() -> None:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    policy = make_policy()
    low, high = torch.tensor([-3.0, 0.0]), torch.tensor([5.0, 0.5])
    span = {"min": low, "max": high}
    statistics = {
        "action": span,
        "observation.state": {"min": -torch.ones(3), "max": torch.ones(3)},
    }
    _, postprocessor = make_diffusion_pre_post_processors(policy.config, statistics)
    full = torch.rand(4, 16, ACTION) * 2 - 1
    cached = full.clone()
    cached[0, 0] += 0.1  # past: T_o - 1 = 1 is the first that is executed
    cached[1, 1, 0] += 0.1
    cached[2, 8, 1] += 0.1  # the last that is executed
    cached[3, 9] += 0.1
    unit = 0.1 * (high - low) / 2  # what 0.1 is in each channel's own unit
    distance = executed_actions(policy, postprocessor)
    expected = torch.tensor([0.0, float(unit[0]), float(unit[1]), 0.0])
    torch.testing.assert_close(distance(full, cached), expected, rtol=1e-4, atol=1e-6)
    limited = executed_actions(policy, postprocessor, limits=(0.2, 0.05))
    torch.testing.assert_close(
        limited(full, cached), torch.tensor([0.0, 2.0, 0.5, 0.0]), rtol=1e-4, atol=1e-6
    )
    assert limited.__qualname__ == "executed_actions:1-8:within:0.2,0.05"
    executed = policy.diffusion.generate_actions  # the claim about 1-8, from LeRobot itself
    policy.diffusion.conditional_sample = lambda *_, **__: full
    history = {key: torch.stack([value] * 2, dim=1) for key, value in observation(0, 4).items()}
    assert torch.equal(executed(history), full[:, 1:9])
    with pytest.raises(InputError, match="2 positive numbers"):
        executed_actions(policy, postprocessor, limits=(0.2,))


def test_a_policy_that_cannot_be_translated_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"train mode.*policy\.eval\(\)"):
        planner_of(make_policy().train())
    with torch.autocast("cpu"), pytest.raises(InputError, match=r"autocast to torch\.bfloat16"):
        planner_of(make_policy())

    class OwnLoop(type(make_policy().diffusion)):  # type: ignore[misc]
        def conditional_sample(self, *arguments: Any, **rest: Any) -> Tensor:
            raise AssertionError

    policy = make_policy()
    policy.diffusion.__class__ = OwnLoop
    with pytest.raises(InputError, match="not by LeRobot"):
        planner_of(policy)
    policy = make_policy()
    from diffusers import DPMSolverMultistepScheduler

    policy.diffusion.noise_scheduler = DPMSolverMultistepScheduler(100)
    with pytest.raises(
        InputError, match=r"DPMSolverMultistep.*DDPMScheduler, DDIM.*docs/guides/adapter\.md"
    ):
        planner_of(policy)
