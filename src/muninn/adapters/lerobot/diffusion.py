"""LeRobot's DiffusionPolicy: its sampling loop as a planner, its observations as contexts.

``DiffusionModel.conditional_sample`` (LeRobot 0.4) draws x_T unless it is given, then at every
timestep of its diffusers scheduler calls ``unet(x, t, global_cond=...)`` and ``scheduler.step``.
DDPM draws one tensor more at every step but the last; DDIM (eta 0) none. No entry of the
trajectory is conditioned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from muninn.adapters.diffusers_sampler import DiffusersSampler
from muninn.adapters.lerobot.watch import require_lerobot_loop, require_plain
from muninn.certify.metrics import Metric
from muninn.context import Context
from muninn.engines.intercept import require_not_compiled
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner

Limits = Sequence[float] | Mapping[tuple[int, ...], float]

_LOOP = "conditional_sample"
_STATE = "observation.state"
_IMAGES = "observation.images"


@dataclass(frozen=True)
class ConditionalUNet:
    """The U-Net at a global condition.

    It holds the whole model, so that a certificate tells apart the observation encoders too.
    """

    diffusion: Any

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        prediction: Tensor = self.diffusion.unet(x, timestep, global_cond=context)
        return prediction


def planner_of(policy: Any) -> Planner:
    """The planner inside a DiffusionPolicy; contexts are rows of :func:`global_conditions`.

    Given the same draws, ``planner_of(policy).sample`` returns what
    ``policy.diffusion.conditional_sample`` returns, bit for bit.

    Raises:
        InputError: the policy is in train mode, compiled or under autocast, overrides the loop,
            or has a scheduler that is not supported.
    """
    diffusion = policy.diffusion
    device = require_plain(policy, diffusion)
    if diffusion.config.compile_model:
        raise InputError(
            "the U-Net is compiled; make the policy with compile_model=false to cache it"
        )
    require_not_compiled(diffusion.unet)
    require_lerobot_loop(diffusion, _LOOP)
    return Planner(
        ConditionalUNet(diffusion),
        DiffusersSampler(diffusion.noise_scheduler, diffusion.num_inference_steps),
        (diffusion.config.horizon, diffusion.config.action_feature.shape[0]),
        device=device,
        dtype=next(diffusion.parameters()).dtype,  # as the loop draws
    )


def loop(policy: Any) -> tuple[Any, str]:
    """Where the sampling loop lives."""
    return policy.diffusion, _LOOP


def state(policy: Any) -> dict[str, Any]:
    """What may be changed after enabling."""
    diffusion = policy.diffusion
    return {
        "train mode": policy.training,
        "inference steps": diffusion.num_inference_steps,
        "scheduler": f"{type(diffusion.noise_scheduler).__name__}"
        f"({dict(diffusion.noise_scheduler.config)})",
    }


def arguments(
    planner: Planner,
    batch_size: int,
    global_cond: Tensor | None = None,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> tuple[Context, Noise]:
    """Context and noise of a call of ``conditional_sample``, drawn in its order."""

    def draw() -> Tensor:
        return torch.randn(
            (batch_size, *planner.shape),
            dtype=planner.dtype,
            device=planner.device,
            generator=generator,
        )

    initial = draw() if noise is None else noise
    steps = {i: draw() for i, step in enumerate(planner.sampler.steps) if step.draws_noise}
    return global_cond, Noise(initial, steps)


def global_conditions(policy: Any, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """Contexts for calibration, (calls, condition), from observations.

    Args:
        policy: in eval mode; its own encoder makes the conditions.
        batches: observations as the policy's preprocessor returns them (normalised, on the
            policy's device), each tensor (batch, n_obs_steps, ...), keys as in the dataset.

    Raises:
        InputError: the policy is in train mode, there is no batch, or one lacks the history or
            what the policy needs.
    """
    if policy.training:
        raise InputError("the policy is in train mode; call policy.eval() first")
    config, rows = policy.config, []
    with torch.no_grad():
        for number, batch in enumerate(batches):
            _require_history(config, batch, f"batch {number}")
            images = [batch[key] for key in config.image_features]
            whole = {**batch, **({_IMAGES: torch.stack(images, dim=-4)} if images else {})}
            rows.append(policy.diffusion._prepare_global_conditioning(whole))
    if not rows:
        raise InputError("batches holds no batch; give at least one")
    return torch.cat(rows)


def _require_history(config: Any, batch: Mapping[str, Any], where: str) -> None:
    """Every observation that the policy looks at is there, with its history."""
    missing = sorted(set(config.input_features) - set(batch))
    if missing:
        seen = ", ".join(sorted(key for key in batch if key.startswith("observation.")))
        raise InputError(
            f"{where} lacks {', '.join(missing)}; it has {seen or 'no observation.* key'}. Add "
            "these, or rename yours"
        )
    for key, feature in config.input_features.items():
        value, wanted = batch[key], (config.n_obs_steps, *feature.shape)
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        sized = slice(1, 2) if feature.type.name == "VISUAL" else slice(1, None)  # may be resized
        if len(shape) != 1 + len(wanted) or shape[sized] != wanted[: len(shape[sized])]:
            seen = f"shape {shape}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise InputError(
                f"{key} of {where} has {seen}; give a tensor "
                f"(batch, {', '.join(map(str, wanted))}): the history that the policy looks at"
            )


def executed_actions(
    policy: Any, postprocessor: Callable[[Tensor], Tensor], limits: Limits | None = None
) -> Metric:
    """A metric: how far the actions that the robot executes are apart, in their physical units.

    It looks at the ``n_action_steps`` actions that the policy queues from a plan, which begin with
    the one of the newest observation (not with the first of the plan), un-normalised.

    Args:
        policy: tells which actions it executes.
        postprocessor: the policy's own; normalised actions (batch, action) to physical ones.
        limits: largest acceptable differences, in the unit of the action: one per channel, or one
            per group of channels for Euclidean distances, as in
            ``{(0, 1, 2): 0.002, (3, 4, 5): math.radians(1), (6,): 0.1}``. The metric is then the
            largest share of its limit that is taken up at any step: calibrate with
            ``tolerance=1``. ``math.inf`` leaves a channel out. Without limits it is the largest
            Euclidean distance of all channels at any step.

    Raises:
        InputError: the limits do not fit the action.
    """
    config = policy.config
    size = config.action_feature.shape[0]
    first = config.n_obs_steps - 1
    last = first + config.n_action_steps
    groups = {tuple(range(size)): 1.0} if limits is None else _groups(limits, size)

    def physical(plans: Tensor) -> Tensor:
        actions = plans[:, first:last]
        return postprocessor(actions.reshape(-1, size)).reshape(actions.shape)

    def deviation(full: Tensor, cached: Tensor) -> Tensor:
        difference = physical(full) - physical(cached)
        shares = [
            torch.linalg.vector_norm(difference[:, :, list(channels)], dim=2) / limit
            for channels, limit in groups.items()
        ]
        return torch.stack(shares).amax(dim=(0, 2))

    within = "" if limits is None else f":within:{_named(limits)}"
    deviation.__qualname__ = f"executed_actions:{first}-{last - 1}{within}"
    return deviation


def _groups(limits: Limits, size: int) -> dict[tuple[int, ...], float]:
    """Channels and their limit; every channel of the action in one group."""
    each: dict[tuple[int, ...], float] = {}
    try:
        if isinstance(limits, Mapping):
            each = dict(limits)
        else:
            each = {(channel,): limit for channel, limit in enumerate(limits)}
        channels = sorted(channel for group in each for channel in group)
        fits = channels == list(range(size)) and all(limit > 0.0 for limit in each.values())
    except TypeError:  # one number, or a channel instead of a group: they could mean either
        fits = False
    if not fits:
        raise InputError(
            f"limits must be {size} positive numbers, one per action channel, or name each of the "
            f"channels 0 to {size - 1} in one group, a tuple ((0,) for channel 0 alone); got "
            f"{limits!r}"
        )
    return each


def _named(limits: Limits) -> str:
    if isinstance(limits, Mapping):
        return ",".join(f"{'+'.join(map(str, g))}={limit:g}" for g, limit in limits.items())
    return ",".join(f"{limit:g}" for limit in limits)
