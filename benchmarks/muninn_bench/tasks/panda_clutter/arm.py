"""The arm as spheres, in torch: batched, differentiable, on any device.

Nothing here depends on values or waits for them, so that all of it can be captured in CUDA graphs.
Joints are radians, (..., 7). Distances are metres, signed: negative where a sphere is inside. The
spheres cover all that collides and stick out of it, so that clearances are careful: see the card.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from muninn_bench.tasks.panda_clutter.robot import HAND, JOINTS, MOST_BOXES
from muninn_bench.tasks.panda_clutter.spheres import ADJOINING, SELF_LINKS, SPHERES

FAR = (0.0, 0.0, -10.0, 0.05, 0.05, 0.05)
"""A box that is nowhere near."""

_LINKS = (
    # offset from the link before, metres; quarter turn about the x axis before the joint's own
    ((0.0, 0.0, 0.333), 0),
    ((0.0, 0.0, 0.0), -1),
    ((0.0, -0.316, 0.0), 1),
    ((0.0825, 0.0, 0.0), 1),
    ((-0.0825, 0.384, 0.0), -1),
    ((0.0, 0.0, 0.0), 1),
    ((0.088, 0.0, 0.0), 1),
)
"""The body frames of gym-hil's Panda, which are Franka's (modified Denavit-Hartenberg)."""


class Frames(NamedTuple):
    """Of the base and the seven links: origins (..., 8, 3), and axes as columns (..., 8, 3, 3)."""

    origins: Tensor
    rotations: Tensor


class Arm(nn.Module):
    """Forward kinematics and clearances; move it to a device or a type with ``to``."""

    centres_in_link: Tensor  # metres, (spheres, 3), link by link
    radii: Tensor  # metres, (spheres,)
    axes: Tensor  # of the world
    hand_in_link: Tensor
    first: Tensor  # and second: numbers of the spheres of each pair that may meet
    second: Tensor

    def __init__(self) -> None:
        super().__init__()
        table = torch.tensor(SPHERES, dtype=torch.float64)
        links = table[:, 0].long()
        self._counts = torch.bincount(links, minlength=JOINTS + 1).tolist()
        first, second = torch.triu_indices(len(table), len(table), 1)
        met = torch.zeros(JOINTS + 1, JOINTS + 1, dtype=torch.bool)
        met[tuple(torch.tensor(SELF_LINKS).T)] = True
        kept = met[links[first], links[second]]
        for one, other in ADJOINING:
            kept &= (first != one) | (second != other)
        self.register_buffer("centres_in_link", table[:, 1:4].float())
        self.register_buffer("radii", table[:, 4].float())
        self.register_buffer("axes", torch.eye(3))
        self.register_buffer("hand_in_link", torch.tensor(HAND).float())
        self.register_buffer("first", first[kept])
        self.register_buffer("second", second[kept])

    def frames(self, joints: Tensor) -> Frames:
        """Of joints (..., 7)."""
        shape = (*joints.shape[:-1], 3)
        x, y, z = (axis.expand(shape) for axis in self.axes)
        origin = torch.zeros_like(x)
        origins, rotations = [origin], [torch.stack([x, y, z], dim=-1)]
        cosines, sines = joints.cos()[..., None], joints.sin()[..., None]
        for joint, (offset, turn) in enumerate(_LINKS):
            origin = origin + offset[0] * x + offset[1] * y + offset[2] * z
            if turn:
                y, z = turn * z, -turn * y
            cosine, sine = cosines[..., joint, :], sines[..., joint, :]
            x, y = cosine * x + sine * y, cosine * y - sine * x
            origins.append(origin)
            rotations.append(torch.stack([x, y, z], dim=-1))
        return Frames(torch.stack(origins, dim=-2), torch.stack(rotations, dim=-3))

    def hand(self, joints: Tensor) -> Tensor:
        """Where the finger tips meet, metres, (..., 3)."""
        frames = self.frames(joints)
        found: Tensor = (
            frames.origins[..., -1, :] + frames.rotations[..., -1, :, :] @ self.hand_in_link
        )
        return found

    def centres(self, joints: Tensor) -> Tensor:
        """Of the spheres, metres, (..., spheres, 3)."""
        frames, parts = self.frames(joints), []
        for link, local in enumerate(torch.split(self.centres_in_link, self._counts)):
            turned = local @ frames.rotations[..., link, :, :].transpose(-1, -2)
            parts.append(frames.origins[..., link, None, :] + turned)
        return torch.cat(parts, dim=-2)

    def clearance(self, joints: Tensor, boxes: Tensor) -> Tensor:
        """From each sphere to the nearest box: (..., 7) and (..., count, 6) to (..., spheres).

        Leading dimensions broadcast; boxes of fewer than ``count`` are filled up with FAR.
        """
        centres = self.centres(joints)[..., :, None, :]
        outside = (centres - boxes[..., None, :, :3]).abs() - boxes[..., None, :, 3:]
        beyond = torch.linalg.vector_norm(outside.clamp(min=0.0), dim=-1)
        inside = outside.amax(dim=-1).clamp(max=0.0)
        found: Tensor = (beyond + inside).amin(dim=-1) - self.radii
        return found

    def self_clearance(self, joints: Tensor) -> Tensor:
        """Between spheres of links that may meet, (..., pairs)."""
        centres = self.centres(joints)
        ways = centres.index_select(-2, self.first) - centres.index_select(-2, self.second)
        radii = self.radii.index_select(0, self.first) + self.radii.index_select(0, self.second)
        found: Tensor = torch.linalg.vector_norm(ways, dim=-1) - radii
        return found

    def floor_clearance(self, joints: Tensor) -> Tensor:
        """From the spheres of the links after the first to the floor, (..., spheres)."""
        fixed = sum(self._counts[:2])
        found: Tensor = self.centres(joints)[..., fixed:, 2] - self.radii[fixed:]
        return found


def filled_up(boxes: Tensor, count: int = MOST_BOXES) -> Tensor:
    """Boxes (..., some, 6) with FAR ones up to the count, (..., count, 6)."""
    far = torch.tensor(FAR, dtype=boxes.dtype, device=boxes.device)
    missing = count - boxes.shape[-2]
    return torch.cat([boxes, far.expand(*boxes.shape[:-2], missing, 6)], dim=-2)
