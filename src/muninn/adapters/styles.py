"""The calling conventions of other frameworks' networks and conditioning, for :class:`Planner`.

Every style makes a denoiser ``(x, timestep, context) -> prediction`` of a network that is called
differently, every condition repeats a framework's inpainting. All networks are told the timestep
as (batch,), as in training, because rows of a batch may stand at different steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from muninn.adapters.diffusers_sampler import DiffusersSampler
from muninn.context import Context
from muninn.errors import InputError
from muninn.model.denoiser import Denoiser
from muninn.model.planner import Condition, Planner


def diffuser_style(model: Callable[..., Tensor]) -> Denoiser:
    """Diffuser: ``model(x, conditions, t)``.

    Contexts are its conditions, ``{step of the plan: state (batch, observation)}``.
    """

    def denoiser(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        return model(x, context, timestep)

    return denoiser


def diffusion_policy_style(model: Callable[..., Tensor]) -> Denoiser:
    """diffusion_policy: ``model(trajectory, t, local_cond=, global_cond=)``.

    Contexts are dicts with these two keywords, or one of them, and what :func:`masked` needs.
    """

    def denoiser(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        local, overall = _conditions(context)
        return model(x, timestep, local_cond=local, global_cond=overall)

    return denoiser


def dp3_style(model: Callable[..., Tensor]) -> Denoiser:
    """DP3: ``model(sample=, timestep=, local_cond=, global_cond=)``; contexts as there."""

    def denoiser(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        local, overall = _conditions(context)
        return model(sample=x, timestep=timestep, local_cond=local, global_cond=overall)

    return denoiser


def _conditions(context: Context) -> tuple[Any, Any]:
    allowed = {"local_cond", "global_cond", "condition_data", "condition_mask"}
    if not isinstance(context, Mapping) or not context.keys() <= allowed:
        seen = sorted(context) if isinstance(context, Mapping) else type(context).__name__
        raise InputError(
            f"the context must be a dict with some of {', '.join(sorted(allowed))}; got {seen}"
        )
    return context.get("local_cond"), context.get("global_cond")


def clean_diffuser_style(agent: Any) -> Denoiser:
    """CleanDiffuser: ``agent.model_ema["diffusion"](x, noise, condition)``, the averaged weights.

    Contexts are dicts with ``condition``, the embedding ``agent.model_ema["condition"]`` returns
    (absent: none), and ``prior`` where :func:`fixed` is used.
    """
    network = agent.model_ema["diffusion"]
    # Agents that are modules tell their networks the level as a float, older ones as an integer;
    # CleanDiffuser's positional embedding is another one for integers.
    whole = not isinstance(agent, nn.Module)

    def denoiser(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        condition = None if context is None else context.get("condition")
        level = timestep.to(torch.long if whole else x.dtype)
        prediction: Tensor = network(x, level, condition)
        return prediction

    return denoiser


def diffusers_style(model: Any) -> Denoiser:
    """diffusers' models: ``model(x, t, **context)``, whose output is a tensor or has ``sample``."""

    def denoiser(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        output = model(x, timestep, **({} if context is None else context))
        prediction: Tensor = output if isinstance(output, Tensor) else output.sample
        return prediction

    return denoiser


def inpainted(action_size: int) -> Condition:
    """Diffuser: the states given in the context, behind ``action_size`` channels of actions.

    Diffuser writes them into x_T and after every step, as ``condition_when="before"`` does.
    """

    def condition(x: Tensor, context: Context) -> Tensor:
        for step, state in context.items():
            x[:, step, action_size:] = state
        return x

    condition.__qualname__ = f"inpainted:{action_size}"  # a certificate knows it by name
    return condition


def masked(x: Tensor, context: Context) -> Tensor:
    """diffusion_policy and DP3: ``condition_data`` wherever ``condition_mask``, (batch, *shape).

    They write before every call of the network and once at the end: ``condition_when="before"``.
    """
    mask = context["condition_mask"]
    x[mask] = context["condition_data"][mask]
    return x


def fixed(agent: Any) -> Condition:
    """CleanDiffuser: ``prior`` (batch, *shape) of the context wherever ``agent.fix_mask`` is 1."""

    def condition(x: Tensor, context: Context) -> Tensor:
        after: Tensor = x * (1.0 - agent.fix_mask) + context["prior"] * agent.fix_mask
        return after

    condition.__qualname__ = "fixed"
    return condition


def planner_from_diffusers(
    model: Any,
    scheduler: Any,
    steps: int,
    shape: tuple[int, ...],
    *,
    condition: Condition | None = None,
) -> Planner:
    """A network with a diffusers scheduler; full compute is diffusers' own loop, bit for bit.

    The model is called as ``model(x, t, **context)``. For one that is called otherwise, write
    ``Planner(its_style(model), DiffusersSampler(scheduler, steps), shape)``. Shape and condition
    are those of :class:`Planner`. A scheduler that is not supported, and train mode, are an
    InputError.
    """
    device, dtype = torch.device("cpu"), torch.float32
    if isinstance(model, nn.Module):
        if model.training:
            raise InputError("the model is in train mode; call model.eval() first")
        first = next(model.parameters(), torch.empty(0))
        device, dtype = first.device, first.dtype
    denoiser, sampler = diffusers_style(model), DiffusersSampler(scheduler, steps)
    return Planner(denoiser, sampler, shape, condition=condition, device=device, dtype=dtype)
