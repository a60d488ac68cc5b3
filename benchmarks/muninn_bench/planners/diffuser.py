"""Diffuser: a network that plans between a start and a goal written into its input."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from muninn.context import Context
from muninn.model.planner import Planner
from muninn.model.solvers import ddim
from muninn_bench.networks.teacher import Teacher


@dataclass(frozen=True)
class InpaintedDenoiser:
    """A network that needs no context beyond what is inpainted into its input."""

    network: nn.Module

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        prediction: Tensor = self.network(x, timestep)
        return prediction


def inpaint_ends(x: Tensor, context: Tensor) -> Tensor:
    """Write start and goal states (batch, 2, state) into first and last frames, in place."""
    x[:, :: x.shape[1] - 1, : context.shape[-1]] = context
    return x


def diffuser_planner(teacher: Teacher, *, keep_epsilon: bool = False) -> Planner:
    """Diffuser as published, with DDIM: the teacher's prediction, clipping, every training step.

    ``keep_epsilon`` steps as diffusers' ``DDIMScheduler`` does by default: clipping changes the
    clean plan, and the predicted noise stays.
    """
    sampler = ddim(
        teacher.schedule, kind=teacher.predicts, clip=teacher.clip, keep_epsilon=keep_epsilon
    )
    weight = next(teacher.network.parameters(), teacher.low)
    return Planner(
        denoiser=InpaintedDenoiser(teacher.network),
        sampler=sampler,
        shape=(teacher.horizon, len(teacher.low)),
        condition=inpaint_ends,
        device=weight.device,
        dtype=weight.dtype,
    )
