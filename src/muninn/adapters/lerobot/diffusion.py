"""LeRobot's DiffusionPolicy: its sampling loop as a planner, its observations as contexts.

``DiffusionModel.conditional_sample`` (LeRobot 0.4 and 0.6) draws x_T unless it is given, then at
every timestep of its diffusers scheduler calls ``unet(x, t, global_cond=...)`` and
``scheduler.step``. DDPM draws one tensor more at every step but the last; DDIM (eta 0) none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from muninn.adapters.diffusers_sampler import DiffusersSampler
from muninn.adapters.lerobot.policy import require_keys, require_lerobot_loop, require_plain
from muninn.context import Context
from muninn.engines.intercept import require_not_compiled
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner

_LOOP = "conditional_sample"


@dataclass(frozen=True)
class ConditionalUNet:
    """The U-Net at a global condition, with the whole model: encoders are certified too."""

    diffusion: Any

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        prediction: Tensor = self.diffusion.unet(x, timestep, global_cond=context)
        return prediction


def planner_of(policy: Any) -> Planner:
    """The planner inside a DiffusionPolicy; contexts are rows of :func:`global_conditions`.

    Given the same draws, its ``sample`` returns what ``conditional_sample`` does, bit for bit. A
    policy in train mode, compiled or under autocast, with a loop of its own or a scheduler that is
    not supported, is an InputError.
    """
    diffusion = policy.diffusion
    device = require_plain(policy, diffusion)
    if diffusion.config.compile_model:
        raise InputError("the U-Net is compiled; make the policy with compile_model=false")
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
    return policy.diffusion, _LOOP


def state(policy: Any) -> dict[str, Any]:
    scheduler = policy.diffusion.noise_scheduler
    return {
        "train mode": policy.training,
        "inference steps": policy.diffusion.num_inference_steps,
        "scheduler": f"{type(scheduler).__name__}({dict(scheduler.config)})",
    }


def arguments(
    planner: Planner,
    batch_size: int,
    global_cond: Tensor | None = None,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> tuple[Context, Noise]:
    """Context and noise of a call of ``conditional_sample``, drawn in its order."""
    size, kind = (batch_size, *planner.shape), {"dtype": planner.dtype, "device": planner.device}
    draw = partial(torch.randn, size, generator=generator, **kind)
    initial = draw() if noise is None else noise
    steps = {i: draw() for i, step in enumerate(planner.sampler.steps) if step.draws_noise}
    return global_cond, Noise(initial, steps)


def global_conditions(policy: Any, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """Contexts for calibration, (calls, condition), made by the policy's own encoder.

    Batches are observations as the policy's preprocessor returns them (normalised, on the
    policy's device), each tensor (batch, n_obs_steps, ...), keys as in the dataset. Train mode, no
    batch, and one that lacks the history or what the policy needs are an InputError.
    """
    if policy.training:
        raise InputError("the policy is in train mode; call policy.eval() first")
    config, rows = policy.config, []
    with torch.no_grad():
        for number, batch in enumerate(batches):
            _require_history(config, batch, f"batch {number}")
            images = [batch[key] for key in config.image_features]
            stacked = {"observation.images": torch.stack(images, dim=-4)} if images else {}
            rows.append(policy.diffusion._prepare_global_conditioning({**batch, **stacked}))
    if not rows:
        raise InputError("batches holds no batch; give at least one")
    return torch.cat(rows)


def _require_history(config: Any, batch: Mapping[str, Any], where: str) -> None:
    """Every observation that the policy looks at is there, with its history."""
    require_keys(config.input_features, batch, where)
    for key, feature in config.input_features.items():
        value, wanted = batch[key], (config.n_obs_steps, *feature.shape)
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        sized = 1 if feature.type.name == "VISUAL" else len(wanted)  # images may be resized
        if len(shape) != 1 + len(wanted) or shape[1 : 1 + sized] != wanted[:sized]:
            seen = f"shape {shape}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise InputError(
                f"{key} of {where} has {seen}; give a tensor "
                f"(batch, {', '.join(map(str, wanted))}): the history that the policy looks at"
            )
