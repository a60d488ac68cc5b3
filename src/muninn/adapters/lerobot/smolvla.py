"""LeRobot's SmolVLA: its flow-matching loop as a planner, the prefix of a call as its context.

``VLAFlowMatching.sample_actions`` (LeRobot 0.4 and 0.6) draws x_1 unless it is given, computes the
prefix (keys and values of images, language and state) once, then takes ``num_steps`` equal Euler
steps from time 1 to 0, each with one ``denoise_step``. A forecast step skips that expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from muninn.adapters.lerobot.policy import require_keys, require_lerobot_loop, require_plain
from muninn.context import Context, concatenate
from muninn.errors import CertificateError, InputError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.solvers import euler

_LOOP = "sample_actions"
_STATE = "observation.state"
_Images = Sequence[Tensor]
_TOKENS = "observation.language.tokens", "observation.language.attention_mask"


class EulerSteps(Sampler):
    """Equal Euler steps that round as the loop's ``x + dt * v`` does."""

    def __init__(self, steps: int) -> None:
        self._move = -1.0 / steps
        table = euler([*(1.0 + step * self._move for step in range(steps)), 0.0])
        super().__init__(table.name, table.kind, table.steps, flow=True, details=table.describe())

    def _own_step(self, x: Tensor, prediction: Tensor, index: int, noise: Tensor | None) -> Tensor:
        return x + self._move * prediction


@dataclass(frozen=True)
class ActionExpert:
    """The velocity at a prefix, with the whole model: vision and language are certified too."""

    model: Any
    periods: tuple[float, float]  # shortest and longest of its time embedding; no weight shows them

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        kept = context["past_key_values"]
        if not isinstance(kept, Mapping):  # a new cache every time: denoise_step writes to it
            kept = import_module("transformers").DynamicCache(kept)
        velocity: Tensor = self.model.denoise_step(
            context["prefix_pad_masks"], kept, x_t=x, timestep=timestep
        )
        return velocity

    @torch.no_grad()
    def prefix(
        self, images: _Images, masks: _Images, tokens: Tensor, seen: Tensor, state: Tensor
    ) -> Context:
        """Keys and values of what the expert attends to, layer by layer.

        LeRobot 0.4 keeps them in dicts, 0.6 in a cache of transformers; a context holds tensors, so
        that one is kept as pairs.
        """
        lerobot = import_module("lerobot.policies.smolvla.modeling_smolvla")
        inputs = images, masks, tokens, seen
        embeddings, pad_masks, attention = self.model.embed_prefix(*inputs, state=state)
        forward = self.model.vlm_with_expert.forward
        told = {"fill_kv_cache": True} if "fill_kv_cache" in signature(forward).parameters else {}
        _, kept = forward(
            attention_mask=lerobot.make_att_2d_masks(pad_masks, attention),
            position_ids=torch.cumsum(pad_masks, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[embeddings, None],
            use_cache=self.model.config.use_cache,
            **told,
        )
        if not isinstance(kept, Mapping):
            kept = tuple((layer.keys, layer.values) for layer in kept.layers)
        return {"prefix_pad_masks": pad_masks, "past_key_values": kept}


def planner_of(policy: Any) -> Planner:
    """The planner inside a SmolVLAPolicy; contexts are those of :func:`prefixes`.

    Given the same noise, its ``sample`` returns what ``policy.model.sample_actions`` returns, bit
    for bit: (batch, chunk_size, max_action_dim), padding included. A policy in train mode, compiled
    or under autocast, with real-time chunking or a loop of its own, is an InputError.
    """
    model, config = policy.model, policy.config
    device = require_plain(policy, model)
    if state(policy)["real-time chunking"]:
        raise InputError(
            "real-time chunking (RTC) guides every step with the chunk before, which a cached step "
            "does not see; set rtc_config to None to cache this policy"
        )
    if config.compile_model:
        raise InputError("the loop is compiled; make the policy with compile_model=false")
    if not config.use_cache:
        raise InputError("use_cache is false: there is no prefix to keep; set use_cache=true")
    require_lerobot_loop(model, _LOOP)
    return Planner(
        ActionExpert(model, (config.min_period, config.max_period)),
        EulerSteps(config.num_steps),
        (config.chunk_size, config.max_action_dim),
        device=device,
    )


def loop(policy: Any) -> tuple[Any, str]:
    return policy.model, _LOOP


def state(policy: Any) -> dict[str, Any]:
    model = policy.model
    return {
        "train mode": policy.training,
        "number of steps": policy.config.num_steps,
        "real-time chunking": model._rtc_enabled()
        or (model.rtc_processor is not None and model.rtc_processor.is_debug_enabled()),
    }


def arguments(
    planner: Planner,
    images: _Images,
    img_masks: _Images,
    lang_tokens: Tensor,
    lang_masks: Tensor,
    state: Tensor,
    noise: Tensor | None = None,
    *,
    inference_delay: int | None = None,
    prev_chunk_left_over: Tensor | None = None,
    execution_horizon: int | None = None,
) -> tuple[Context, Noise]:
    """Context and noise of a call of ``sample_actions``, drawn in its order.

    The last three belong to real-time chunking; without it LeRobot's loop does not read them. With
    it the call is a CertificateError: full compute would drop its guidance, too.
    """
    expert = planner.denoiser
    assert isinstance(expert, ActionExpert)
    if expert.model._rtc_enabled():
        raise CertificateError(
            "policy: real-time chunking: certificate False, policy True; no plan made here is "
            "guided by the chunk before. Set rtc_config to None, or call disable_cache"
        )
    if noise is None:
        noise = expert.model.sample_noise((len(state), *planner.shape), state.device)
    context = expert.prefix(images, img_masks, lang_tokens, lang_masks, state)
    return context, Noise(noise)


def prefixes(policy: Any, batches: Iterable[Mapping[str, Tensor]]) -> Context:
    """Contexts for calibration: the prefix of every observation.

    Batches are observations as the policy's preprocessor returns them: normalised, on the
    policy's device, with the tokens of the task. Train mode, no batch, one that lacks state, camera
    or tokens, and prefixes of different lengths are an InputError.
    """
    expert, found = planner_of(policy).denoiser, []
    assert isinstance(expert, ActionExpert)
    for number, batch in enumerate(batches):
        cameras = [key for key in policy.config.image_features if key in batch]
        wanted = (_STATE, *_TOKENS, *(cameras or policy.config.image_features))
        require_keys(wanted, batch, f"batch {number}")
        # LeRobot rewrites the state in place for one kind of robot.
        own = policy._prepare_batch({**batch, _STATE: batch[_STATE].clone()})
        images, masks = policy.prepare_images(own)
        tokens, seen = (own[key] for key in _TOKENS)
        found.append(expert.prefix(images, masks, tokens, seen, policy.prepare_state(own)))
    if not found:
        raise InputError("batches holds no batch; give at least one")
    lengths = {context["prefix_pad_masks"].shape[1] for context in found}
    if len(lengths) > 1:
        raise InputError(
            f"the prefixes have {sorted(lengths)} tokens; contexts need one length: tokenise with "
            "padding to max_length (pad_language_to='max_length')"
        )
    return concatenate(found)
