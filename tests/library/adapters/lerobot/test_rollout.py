"""LeRobot's own evaluation drives a cached policy; it runs policies in inference mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lerobot_cases import ACTION, SCENE, STATE
from muninn.adapters import disable_cache, enable_cache
from muninn.certify.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
gymnasium = pytest.importorskip("gymnasium")

ENVIRONMENTS, STEPS = 2, 10


class Drift(gymnasium.Env):  # type: ignore[misc, name-defined]
    """The state moves by the action; nothing else happens."""

    _max_episode_steps = STEPS
    task = task_description = "drift"
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,))
    observation_space = gymnasium.spaces.Dict(
        agent_pos=gymnasium.spaces.Box(-9.0, 9.0, (STATE,)),
        environment_state=gymnasium.spaces.Box(-9.0, 9.0, (SCENE,)),
    )

    def _observe(self) -> dict[str, Any]:
        return {"agent_pos": self.state.numpy(), "environment_state": torch.ones(SCENE).numpy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = torch.full((STATE,), 0.1 * float(seed or 0))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.state = self.state + 0.1 * torch.as_tensor(action).sum().float()
        return self._observe(), 0.0, False, False, {"is_success": False}


def drive(policy: Any) -> Tensor:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors
    from lerobot.scripts.lerobot_eval import rollout

    statistics = {
        "observation.state": {"min": -torch.ones(STATE), "max": torch.ones(STATE)},
        "action": {"min": -torch.ones(ACTION), "max": torch.ones(ACTION)},
    }
    preprocessor, postprocessor = make_diffusion_pre_post_processors(policy.config, statistics)
    torch.manual_seed(4)
    actions: Tensor = rollout(
        gymnasium.vector.SyncVectorEnv([Drift] * ENVIRONMENTS),
        policy,
        lambda given: given,
        lambda given: given,
        preprocessor,
        postprocessor,
        seeds=list(range(ENVIRONMENTS)),
    )["action"]
    return actions


def test_a_rollout_is_cached_while_enabled_and_bit_identical_otherwise(
    policy: Any, certificate: Certificate
) -> None:
    plain = drive(policy)
    assert plain.shape == (ENVIRONMENTS, STEPS, ACTION)
    enable_cache(policy, certificate)
    cached = drive(policy)
    assert not torch.equal(cached, plain)
    assert policy.muninn.last.evaluations.tolist() == [5] * ENVIRONMENTS
    # What the first rollout left behind in inference mode serves calls outside of it, too.
    context = torch.zeros(1, 2 * (STATE + SCENE))
    assert not policy.diffusion.conditional_sample(1, global_cond=context).is_inference()
    assert torch.equal(drive(policy), cached)
    disable_cache(policy)
    assert torch.equal(drive(policy), plain)
