"""A tiny, randomly initialised policy of LeRobot's real class, and a certificate for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import muninn
from muninn.adapters import planner_of
from muninn.certify.certificate import Certificate
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

STATE, SCENE, ACTION = 3, 2, 2


def make_policy(seed: int = 0, **changes: Any) -> Any:
    """State observations, T_o=2, H=16, T_a=8, in eval mode; fields of its config may be changed."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    settings: dict[str, Any] = {"down_dims": (16, 32), "n_groups": 4, **changes}
    config = DiffusionConfig(
        n_obs_steps=2,
        horizon=16,
        n_action_steps=8,
        diffusion_step_embed_dim=16,
        device="cpu",
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE,)),
            "observation.environment_state": PolicyFeature(FeatureType.ENV, (SCENE,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        **settings,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DiffusionPolicy(config).eval()


def observation(seed: int, rows: int = 1) -> dict[str, Tensor]:
    """One time step, as the preprocessor returns it."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation.state": torch.randn(rows, STATE, generator=generator),
        "observation.environment_state": torch.randn(rows, SCENE, generator=generator),
    }


def conditions(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2 * (STATE + SCENE), generator=generator)


def certify(policy: Any) -> Certificate:
    """Whatever its accuracy: the most aggressive of two plans."""
    last = policy.diffusion.num_inference_steps - 1
    few, fewer = (0, 1, 2, 5, 8, 12, last), (0, 1, 4, 9, last)
    family = Family.of(
        Forecast("sample", 1, True), (Everywhere(), Static(few), Static(fewer)), "static"
    )
    return muninn.calibrate(
        planner_of(policy),
        conditions(72),
        tolerance=1e6,
        risk=0.1,
        family=family,
        batch_size=64,
        progress=False,
    )
