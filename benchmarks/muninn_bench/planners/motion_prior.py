"""A prior over motions of an arm: a U-Net that predicts the noise in plans between two poses.

It is told start and goal, embedded, and they are inpainted into the first and last frame. It never
sees an obstacle: costs push its plans around obstacles while they are sampled, so one prior serves
every planner and every world of the arm. One call draws several plans: ``(rows, frames, joints)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.unet import TemporalUnet, UnetConfig

CLIP = 1.0
"""Bound on clean plans: the limits of the coordinates, which are the joints' own."""

BOX = 6
"""Numbers of a box: its centre and its half sizes, in metres."""


@dataclass(frozen=True)
class MotionPrior:
    """How the network of a motion planner is built.

    Attributes:
        joints: of the arm.
        horizon: frames from start to goal.
        steps: of the cosine noise schedule.
        widths, blocks, time_width: of the U-Net.
    """

    joints: int = 7
    horizon: int = 64
    steps: int = 25
    widths: tuple[int, ...] = (32, 64, 128, 256)
    blocks: int = 2
    time_width: int = 128
    planner: ClassVar[str] = "motion-prior"

    @property
    def schedule(self) -> Schedule:
        """The noise schedule that the network is trained on."""
        return Schedule.cosine(self.steps)

    def networks(self) -> nn.ModuleDict:
        """``plan``, which predicts the noise."""
        config = UnetConfig(
            channels=self.joints,
            widths=self.widths,
            blocks=self.blocks,
            middle_blocks=self.blocks,
            time_width=self.time_width,
            predicts="epsilon",
            told=2 * self.joints,
        )
        return nn.ModuleDict({"plan": TemporalUnet(config, self.schedule, self.horizon)})


@dataclass(frozen=True)
class MotionDenoiser:
    """A network that is told start and goal, for all plans of a call at once."""

    network: nn.Module

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        rows = x.shape[1]
        told = ends_of(context, x.shape[-1]).flatten(1).repeat_interleave(rows, dim=0)
        times = timestep.repeat_interleave(rows)
        found: Tensor = self.network(x.flatten(0, 1), times, told)
        return found.view_as(x)


def ends_of(context: Tensor, joints: int) -> Tensor:
    """Start and goal, (batch, 2, joints), normalised; InputError as :func:`boxes_of`."""
    return _split(context, joints)[0].reshape(-1, 2, joints)


def boxes_of(context: Tensor, joints: int) -> Tensor:
    """Boxes, (batch, count, 6), in metres: centres, then half sizes.

    Raises:
        InputError: the context is not start, goal and whole boxes.
    """
    return _split(context, joints)[1].reshape(len(context), -1, BOX)


def _split(context: Tensor, joints: int) -> tuple[Tensor, Tensor]:
    numbers = context.shape[-1] - 2 * joints
    if numbers < BOX or numbers % BOX:
        raise InputError(
            f"a context of an arm with {joints} joints has {2 * joints} numbers for start and goal "
            f"and {BOX} for each box, at least one; got {context.shape[-1]}"
        )
    return context[:, : 2 * joints], context[:, 2 * joints :]


def inpaint_poses(x: Tensor, context: Tensor) -> Tensor:
    """Write start and goal into first and last frames of plans, in place."""
    x[:, :, :: x.shape[2] - 1] = ends_of(context, x.shape[-1])[:, None]
    return x
