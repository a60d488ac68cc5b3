"""What an arm must keep away from, as the planners' costs and choices ask for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from muninn_bench.tasks.panda_clutter.arm import Arm

SELF_SLACK = 0.02
"""By which spheres of two links may overlap, metres: they stick out of links that nearly touch in
many poses. The expert's paths overlap by 1.7 cm at most in 24 problems."""


class Surroundings(nn.Module):
    """Distances of the arm's spheres to the boxes and the floor, metres, (..., distances).

    Joints are (..., 7), boxes (..., count, 6). This is what guidance looks at: the prior has
    learned from motions that do not touch themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arm = Arm()

    def forward(self, joints: Tensor, boxes: Tensor) -> Tensor:
        """Negative where a sphere is inside."""
        near = self.arm.clearance(joints, boxes)
        return torch.cat([near, self.arm.floor_clearance(joints)], dim=-1)


class Everything(Surroundings):
    """The same, and distances between the arm's own spheres, but for the slack.

    This is what the choice among plans looks at.
    """

    def forward(self, joints: Tensor, boxes: Tensor) -> Tensor:
        """Negative where a sphere is inside."""
        own = self.arm.self_clearance(joints) + SELF_SLACK
        return torch.cat([super().forward(joints, boxes), own], dim=-1)
