"""A gymnasium environment, driven by the policy's own code with another loop inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
from lerobot_cases import ACTION, SCENE, STATE, make_policy
from muninn.adapters import enable_cache, planner_of
from muninn.adapters.lerobot import driven_episodes, driven_outcomes, executed_actions
from muninn.errors import InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
gymnasium = pytest.importorskip("gymnasium")

STEPS = 18  # calls at steps 0, 8, 16
DDIM = {"noise_scheduler_type": "DDIM", "num_inference_steps": 16}


class Drift(gymnasium.Env):  # type: ignore[misc, name-defined]
    """The state moves by the action."""

    _max_episode_steps = STEPS
    task = task_description = "drift"
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,))
    observation_space = gymnasium.spaces.Dict(
        agent_pos=gymnasium.spaces.Box(-9.0, 9.0, (STATE,)),
        environment_state=gymnasium.spaces.Box(-9.0, 9.0, (SCENE,)),
    )

    def __init__(self, ends_after: int = 99) -> None:
        self._ends_after = ends_after
        self.actions: list[Any] = []
        self.resets = 0

    def _observe(self) -> dict[str, Any]:
        return {"agent_pos": self.state, "environment_state": np.ones(SCENE)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        self.state = self.np_random.normal(size=STATE)
        self._left = self._ends_after
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert action.shape == (ACTION,)
        self.actions.append(action)
        self.state = self.state + 0.1 * action.sum()
        self._left -= 1
        return self._observe(), 0.0, self._left == 0, False, {"is_success": False}


def processors(policy: Any) -> dict[str, Any]:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    statistics = {
        "observation.state": {"min": torch.full((STATE,), -2.0), "max": torch.ones(STATE)},
        "action": {"min": -torch.ones(ACTION), "max": torch.full((ACTION,), 3.0)},
    }
    first, last = make_diffusion_pre_post_processors(policy.config, statistics)
    return {"preprocessor": first, "postprocessor": last}


class Plan:
    """Plans by full compute, with the noise of the call's number; keeps what it is told."""

    def __init__(self, policy: Any) -> None:
        self._planner = planner_of(policy)
        self.contexts: list[Tensor] = []

    def __call__(self, context: Tensor) -> Tensor:
        self.contexts.append(context)
        noise = self._planner.draw_noise(seeds=[len(self.contexts)])
        return self._planner.sample(context, noise=noise)


def test_an_episode_is_lerobots_own_rollout() -> None:
    from lerobot.scripts.lerobot_eval import rollout

    policy = make_policy(**DDIM)
    own = Plan(policy)
    policy.diffusion.conditional_sample = lambda rows, **rest: own(rest["global_cond"])
    parts = processors(policy)
    expected = rollout(
        gymnasium.vector.SyncVectorEnv([Drift]),
        policy,
        lambda given: given,
        lambda given: given,
        **parts,
        seeds=[7],
    )["action"][0].numpy()
    del policy.diffusion.conditional_sample
    environment, ours = Drift(), Plan(policy)
    episodes = driven_episodes(policy, environment, 5, **parts)
    episodes.drive(ours, 7)
    assert episodes.count == 5 and len(ours.contexts) == 3
    assert np.array_equal(environment.actions, expected)
    assert torch.equal(torch.cat(ours.contexts), torch.cat(own.contexts))


def test_a_seed_is_an_episode_and_nothing_is_left_behind() -> None:
    policy, environment = make_policy(**DDIM), Drift()
    drive = driven_episodes(policy, environment, 1).drive
    attributes, state = set(vars(policy.diffusion)), torch.get_rng_state()
    found = []
    for seed in (3, 3, 4 + 2**40):
        plan = Plan(policy)
        drive(plan, seed)
        found.append(torch.cat(plan.contexts))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    with pytest.raises(RuntimeError, match="stop"):
        drive(lambda context: (_ for _ in ()).throw(RuntimeError("stop")), 3)
    assert set(vars(policy.diffusion)) == attributes and not policy._queues["action"]
    assert torch.equal(torch.get_rng_state(), state)


def test_an_episode_ends_with_the_environment_or_the_steps() -> None:
    policy = make_policy(**DDIM)
    for environment, steps, executed in (
        (Drift(ends_after=5), None, 5),
        (Drift(), 9, 9),
        (Drift(), None, STEPS),
        (gymnasium.wrappers.TimeLimit(Drift(), 4), 11, 4),
    ):
        driven_episodes(policy, environment, 1, steps=steps).drive(Plan(policy), 0)
        assert len(environment.unwrapped.actions) == executed


def test_each_member_drives_its_own_episodes_and_the_policy_gets_a_closed_loop_certificate() -> (
    None
):
    policy, environment = make_policy(**DDIM), Drift(ends_after=9)
    parts = processors(policy)
    evaluations: list[int] = []
    policy.diffusion.unet.register_forward_pre_hook(lambda _, given: evaluations.append(1))
    certificate = muninn.calibrate(
        planner_of(policy),
        driven_episodes(policy, environment, 14, **parts),
        metric=executed_actions(policy, parts["postprocessor"], limits=(0.5, 0.5)),
        tolerance=1e6,
        risk=0.25,
        confidence=None,
        family=Family.of(
            Forecast("sample", 1, True), (Everywhere(), Static((0, 1, 5, 15))), "static"
        ),
        progress=False,
    )
    assert certificate.loop == "closed" and certificate.unit == "episode"
    assert certificate.member == 1
    # One in which the planner is examined, certify and bound; nothing is tuned, Full is the shadow.
    assert environment.resets == 15
    # Two calls an episode, Full at each. Examined: one episode, Full twice, 11 rounds of questions.
    assert len(evaluations) == 14 * 2 * (16 + 4) + 2 * 16 + 2 * 16 + 11 * 8
    enable_cache(policy, certificate)
    policy.reset()
    policy.select_action({"observation.state": torch.zeros(1, STATE),
                          "observation.environment_state": torch.zeros(1, SCENE)})  # fmt: skip
    assert policy.muninn.last.evaluations.tolist() == [4]
    with pytest.raises(InputError, match="disable_cache"):
        driven_episodes(policy, environment, 1).drive(Plan(policy), 0)


def test_observe_translates_and_named_keys_are_taken_as_they_are() -> None:
    policy = make_policy(**DDIM)
    expected = Plan(policy)
    driven_episodes(policy, Drift(), 1).drive(expected, 3)

    def named(seen: dict[str, Any]) -> dict[str, Any]:
        return {
            "observation.state": seen["agent_pos"],
            "observation.environment_state": seen["environment_state"],
        }

    plan = Plan(policy)
    driven_episodes(policy, Drift(), 1, observe=named).drive(plan, 3)
    assert torch.equal(torch.cat(plan.contexts), torch.cat(expected.contexts))
    renamed, plan = gymnasium.wrappers.TransformObservation(Drift(), named, None), Plan(policy)
    driven_episodes(policy, renamed, 1).drive(plan, 3)
    assert torch.equal(torch.cat(plan.contexts), torch.cat(expected.contexts))


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (lambda seen: {"agent_pos": seen["agent_pos"]}, r"step 0 lacks observation\.environment_s"),
        (lambda seen: {**seen, "agent_pos": np.ones(9)}, r"shape \(9,\); the policy takes \(3,\)"),
        (lambda seen: {**seen, "agent_pos": seen["agent_pos"] * np.nan}, "step 0 is not finite"),
        (lambda seen: {"speed": np.ones(1)}, r"has (the keys |observation\.)speed"),
        (lambda seen: seen["agent_pos"], "returns ndarray, not a dict; pass observe="),
    ],
    ids=["missing", "shape", "nan", "keys", "array"],
)
def test_an_unusable_observation_is_named(observe: Any, message: str) -> None:
    policy = make_policy(**DDIM)
    environment = gymnasium.wrappers.TransformObservation(Drift(), observe, None)
    with pytest.raises(InputError, match=message):
        driven_episodes(policy, environment, 1).drive(Plan(policy), 0)
    assert "conditional_sample" not in vars(policy.diffusion)


def test_a_vector_or_an_environment_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy(**DDIM)
    with pytest.raises(InputError, match="vector of environments"):
        driven_episodes(policy, gymnasium.vector.SyncVectorEnv([Drift]), 1)
    with pytest.raises(InputError, match="steps is 0"):
        driven_episodes(policy, Drift(), 1, steps=0)
    monkeypatch.delattr(Drift, "_max_episode_steps")
    with pytest.raises(InputError, match="own limit None; give steps"):
        driven_episodes(policy, Drift(), 1)


# -- outcomes ------------------------------------------------------------------------------------


class Goal(Drift):
    """Succeeds while the first coordinate is positive."""

    def step(self, action: Any) -> Any:
        *rest, told = super().step(action)
        return *rest, {**told, "is_success": bool(self.state[0] > 0.0)}


def test_a_policy_gets_an_outcome_certificate_and_runs_under_it() -> None:
    policy = make_policy(**DDIM)
    parts = processors(policy)
    common: dict[str, Any] = {"promise": "mean", "margin": 0.6, "tune": 8}
    certificate = muninn.calibrate(
        planner_of(policy),
        driven_outcomes(policy, Goal(ends_after=9), 40, **parts, **common),
        family=Family.of(
            Forecast("sample", 1, True), (Everywhere(), Static((0, 1, 5, 15))), "static"
        ),
        progress=False,
    )
    assert certificate.outcome is not None and certificate.bound is None
    assert certificate.member == 1 and "mean score of new episodes" in certificate.promise()
    assert certificate.outcome["run"] == "driven_outcomes:Goal:18 steps"
    judged = muninn.evaluate(
        planner_of(policy), certificate,
        driven_outcomes(policy, Goal(ends_after=9), 40, **parts, **common), progress=False,
    )  # fmt: skip
    assert judged.kept
    enable_cache(policy, certificate)
    policy.reset()
    policy.select_action({"observation.state": torch.zeros(1, STATE),
                          "observation.environment_state": torch.zeros(1, SCENE)})  # fmt: skip


def test_success_is_read_from_what_the_environment_tells() -> None:
    policy = make_policy(**DDIM)
    made = driven_outcomes(policy, Drift(ends_after=3), 1, steps=3)
    assert made.run(Plan(policy), 0) is False
    own = driven_outcomes(policy, Drift(ends_after=3), 1, steps=3, success=lambda told: True)
    assert own.run(Plan(policy), 0) is True

    class Silent(Drift):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"reward": 1.0}

    with pytest.raises(InputError, match="the environment tells reward, neither is_success"):
        driven_outcomes(policy, Silent(ends_after=3), 1, steps=3).run(Plan(policy), 0)
