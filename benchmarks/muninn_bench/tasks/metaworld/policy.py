"""LeRobot's own DiffusionPolicy for pick-place: what it sees, its size, its files, and a flow.

A folder of a policy is a LeRobot checkpoint: weights, configuration and both processors. The flow
(flow matching, ten Euler steps) has the same network and data: DiffusionPolicy serves it as the
container (U-Net, conditioning, files), and its loss and sampling loop are replaced. Such a
checkpoint is no diffusion policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from muninn.adapters.lerobot.diffusion import ConditionalUNet
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.solvers import euler
from muninn_bench.networks.runs import Runs
from muninn_bench.tasks.metaworld.world import ACTION

STATE, SCENE = "observation.state", "observation.environment_state"
STEPS = 10

TIME_SCALE = 100.0
"""The network is told times from 0 to 100, the range its step embedding was made for."""


def features(observations: Tensor) -> dict[str, Tensor]:
    """What the policy is shown of observations (..., 39), under LeRobot's names.

    Its own state: hand x, y, z and gripper opening. The scene: puck x, y, z and goal x, y, z.
    Left out are the previous frame (the policy looks at two of them anyway), the puck's rotation
    (it hardly turns, and the expert ignores it) and padding.
    """
    scene = torch.cat([observations[..., 4:7], observations[..., 36:39]], dim=-1)
    return {STATE: observations[..., :4], SCENE: scene}


def channels(demonstrations: Runs) -> dict[str, Tensor]:
    """Features and actions of all steps, under LeRobot's names."""
    frames = torch.from_numpy(demonstrations.frames)
    return features(frames[:, :-ACTION]) | {"action": frames[:, -ACTION:]}


def make_policy(down_dims: tuple[int, ...] = (48, 96, 192)) -> Any:
    """An untrained policy: two observations, 16 actions planned, 8 executed, 100 DDPM steps."""
    from lerobot.configs import types  # type: ignore[import-not-found]
    from lerobot.policies.diffusion import (  # type: ignore[import-not-found]
        configuration_diffusion,
        modeling_diffusion,
    )

    minmax, feature = types.NormalizationMode.MIN_MAX, types.PolicyFeature
    config = configuration_diffusion.DiffusionConfig(
        n_obs_steps=2,
        horizon=16,
        n_action_steps=8,
        down_dims=down_dims,
        num_train_timesteps=100,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="epsilon",
        clip_sample=True,
        # LeRobot's default leaves the environment state as it is, in metres: almost constant.
        normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), minmax),
        input_features={
            STATE: feature(types.FeatureType.STATE, (4,)),
            SCENE: feature(types.FeatureType.ENV, (6,)),
        },
        output_features={"action": feature(types.FeatureType.ACTION, (ACTION,))},
        # Of the saved processors. Weights may be trained elsewhere.
        device="cpu",
        push_to_hub=False,
    )
    return modeling_diffusion.DiffusionPolicy(config)


def make_processors(policy: Any, demonstrations: Runs) -> tuple[Any, Any]:
    """LeRobot's pre- and postprocessor with the limits of the data."""
    from lerobot.policies.diffusion.processor_diffusion import (  # type: ignore[import-not-found]
        make_diffusion_pre_post_processors,
    )

    limits = {
        name: {"min": values.amin(dim=0), "max": values.amax(dim=0)}
        for name, values in channels(demonstrations).items()
    }
    processors: tuple[Any, Any] = make_diffusion_pre_post_processors(policy.config, limits)
    return processors


def save_policy(folder: Path, policy: Any, preprocessor: Any, postprocessor: Any) -> None:
    """Write a LeRobot checkpoint."""
    for part in (policy, preprocessor, postprocessor):
        part.save_pretrained(folder)


def load_policy(folder: Path, scheduler: str, steps: int) -> tuple[Any, Any, Any]:
    """Policy in eval mode, preprocessor and postprocessor, on the CPU.

    The ``scheduler`` is ``DDPM`` or ``DDIM``, of so many steps; the weights are the same.

    Raises:
        InputError: no checkpoint there.
    """
    from lerobot.configs.policies import PreTrainedConfig  # type: ignore[import-not-found]
    from lerobot.policies.diffusion.modeling_diffusion import (  # type: ignore[import-not-found]
        DiffusionPolicy,
    )
    from lerobot.policies.factory import make_pre_post_processors  # type: ignore[import-not-found]

    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} holds no policy; train one (docs/guides/metaworld.md) or name its folder"
        )
    config = PreTrainedConfig.from_pretrained(folder)
    config.noise_scheduler_type = scheduler
    config.num_inference_steps = steps
    policy = DiffusionPolicy.from_pretrained(folder, config=config)
    return policy, *make_pre_post_processors(config, pretrained_path=str(folder))


def flow_loss(policy: Any, batch: dict[str, Tensor]) -> Tensor:
    """Flow matching along straight lines, ``x = (1 - time) action + time noise``.

    The target is the velocity ``dx/dtime = noise - action`` (Lipman et al. 2023).
    """
    condition = policy.diffusion._prepare_global_conditioning(batch)
    clean = batch["action"]
    noise = torch.randn_like(clean)
    time = torch.rand(len(clean), device=clean.device)
    mixed = torch.lerp(clean, noise, time[:, None, None])
    velocity = policy.diffusion.unet(mixed, TIME_SCALE * time, global_cond=condition)
    return mse_loss(velocity, noise - clean)


def flow_planner(policy: Any, steps: int = STEPS) -> Planner:
    """The policy's sampling loop: Euler from noise at time 1 to actions at time 0."""
    config = policy.config
    return Planner(
        ConditionalUNet(policy.diffusion),
        euler(steps, time_scale=TIME_SCALE),
        (config.horizon, config.action_feature.shape[0]),
    )
