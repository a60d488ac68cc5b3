"""LeRobot's own DiffusionPolicy for pick-place: what it sees, its size, files and lesson; a flow.

A folder of a policy is a LeRobot checkpoint: weights, configuration and both processors. The flow
(flow matching, ten Euler steps) has the same network and data: DiffusionPolicy serves it as the
container (U-Net, conditioning, files), and its loss and sampling loop are replaced. Such a
checkpoint is no diffusion policy.

Training needs neither Meta-World nor mujoco. The policy that it writes holds averaged weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from muninn.adapters.lerobot.diffusion import ConditionalUNet
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.solvers import euler
from muninn_bench.networks.runs import Runs, load_runs, split_runs
from muninn_bench.tasks.metaworld.world import ACTION

HELD_OUT = 0.03
"""Share of episodes, the last ones, for the validation loss."""

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


class Windows:
    """All steps of all episodes, normalised, on the device: no loader, no workers.

    A window belongs to a step: observations and actions at the policy's delta indices around it
    (here one step back; actions then 14 ahead). Beyond the ends of the episode the first or last
    step is repeated, and ``action_is_pad`` says so. The last ``drop_n_last_frames`` steps of an
    episode have no window: too much of it would be padding.

    The policy's preprocessor normalises everything once.

    Raises:
        InputError: no episode is long enough.
    """

    def __init__(
        self, demonstrations: Runs, config: Any, preprocessor: Any, device: torch.device
    ) -> None:
        steps = channels(demonstrations)
        normalised = preprocessor(dict(steps))
        self._steps = {name: normalised[name].to(device) for name in steps}
        first, last = demonstrations.offsets[:-1], demonstrations.offsets[1:] - 1
        usable = np.maximum(last + 1 - first - config.drop_n_last_frames, 0)
        centres = [np.arange(a, a + count) for a, count in zip(first, usable, strict=True)]
        if not usable.any():
            raise InputError(
                f"the longest of {len(first)} episodes has {(last + 1 - first).max()} "
                f"steps; a window needs more than {config.drop_n_last_frames}"
            )
        # (windows, 3): the step, and the first and last of its episode.
        bounds = np.stack([np.repeat(first, usable), np.repeat(last, usable)], axis=1)
        table = np.column_stack([np.concatenate(centres), bounds])
        self._windows = torch.from_numpy(table).to(device)
        self._seen = torch.tensor(config.observation_delta_indices, device=device)
        self._acted = torch.tensor(config.action_delta_indices, device=device)

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, windows: Tensor) -> dict[str, Tensor]:
        """The batch of some windows: observations (batch, 2, ...), actions (batch, 16, 4)."""
        centre, first, last = self._windows[windows].T[:, :, None]
        seen = (centre + self._seen).clamp(first, last)
        wanted = centre + self._acted
        acted = wanted.clamp(first, last)
        batch = {
            name: values[acted if name == "action" else seen]
            for name, values in self._steps.items()
        }
        return {**batch, "action_is_pad": acted != wanted}

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """A random batch, windows equally likely."""
        device = self._windows.device
        return self.take(torch.randint(len(self), (count,), generator=generator, device=device))


class PolicyLesson:
    """See :class:`muninn_bench.networks.trainer.Lesson`.

    ``data`` is a file of :mod:`muninn_bench.tasks.metaworld.data`; ``flow`` asks for flow matching
    instead of diffusion.

    Raises:
        InputError: the data holds fewer than two episodes.
    """

    network: nn.Module

    def __init__(self, data: Path, flow: bool, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        whole = load_runs(data)
        training, rest = split_runs(whole, HELD_OUT)
        policy = make_policy().to(device).train()
        self.kind, self.network, self._flow = ("flow" if flow else "diffusion"), policy, flow
        self._processors = make_processors(policy, whole)
        config, normalise = policy.config, self._processors[0]
        self._windows = Windows(training, config, normalise, device)
        check = Windows(rest, config, normalise, device)
        self._held_out = check.take(torch.arange(min(len(check), 2048), device=device))

    def batch(self, count: int, generator: torch.Generator) -> tuple[dict[str, Tensor]]:
        """Windows as LeRobot's dataset would give them."""
        return (self._windows.draw(count, generator),)

    def validation(self, generator: torch.Generator) -> tuple[dict[str, Tensor]]:
        """Windows of the last episodes."""
        return (self._held_out,)

    def loss(self, network: Any, *batch: Any) -> Tensor:
        """LeRobot's, or the flow's; both draw from torch's global generator."""
        loss: Tensor = flow_loss(network, batch[0]) if self._flow else network.forward(batch[0])[0]
        return loss

    def save(self, network: nn.Module, out: Path) -> Path:
        """A LeRobot checkpoint."""
        device = next(network.parameters()).device
        save_policy(out, network.to("cpu"), *self._processors)
        network.to(device)
        return out
