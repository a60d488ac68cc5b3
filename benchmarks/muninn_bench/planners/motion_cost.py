"""What pushes a planned motion: collisions with boxes, roughness and joint limits, as one cost.

The arm enters as a module ``clearance(joints, boxes) -> (..., spheres)``: signed distances in
metres of spheres that cover it. It broadcasts ``joints`` (..., joints) in radians with ``boxes``
(..., count, 6) and is differentiable in the joints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn_bench.networks.coordinates import Coordinates

LIMIT = 0.98
"""Share of a joint's range beyond which a plan is pushed back."""


class MotionCost(nn.Module):
    """Cost of plans by row: ``collisions + smoothness * roughness + limits * excess``.

    Collisions are summed over spheres and poses: of every frame, and interpolated between frames,
    so that nothing slips between two. Roughness is the sum of squared second differences, excess
    the sum of squares beyond :data:`LIMIT`; both are in the network's coordinates.

    Args:
        clearance: of the arm, see above.
        coordinates: of the joints.
        smoothness: weight of each row.
        fineness: poses that are checked for every frame.
        limits: weight of the excess.

    Raises:
        InputError: a weight is negative or not finite, or no pose is checked.
    """

    low: Tensor
    high: Tensor
    smoothness: Tensor

    def __init__(
        self,
        clearance: nn.Module,
        coordinates: Coordinates,
        smoothness: tuple[float, ...],
        fineness: int = 2,
        limits: float = 1.0,
    ) -> None:
        super().__init__()
        weights = torch.tensor((*smoothness, limits))
        if fineness < 1 or not bool(((weights >= 0.0) & weights.isfinite()).all()):
            raise InputError(
                "weights of a cost are finite and at least 0, and at least one pose a frame is "
                f"checked; got smoothness {smoothness}, limits {limits}, fineness {fineness}"
            )
        self.clearance, self.fineness, self.limits = clearance, fineness, float(limits)
        self.register_buffer("low", coordinates.low.clone())
        self.register_buffer("high", coordinates.high.clone())
        self.register_buffer("smoothness", weights[:-1].clone())

    def forward(self, plans: Tensor, boxes: Tensor, margin: Tensor) -> Tensor:
        """Costs (batch, rows) of plans (batch, rows, frames, joints), normalised.

        Boxes are (batch, count, 6). The margin is the distance in metres, (batch, rows), below
        which a sphere costs something.
        """
        poses = Coordinates(self.low, self.high).unnormalise(between(plans, self.fineness))
        distances = self.clearance(poses, boxes[:, None, None])
        collisions = hinge(distances, margin[..., None, None]).sum(dim=(2, 3)) / self.fineness
        bend = plans[:, :, 2:] - 2.0 * plans[:, :, 1:-1] + plans[:, :, :-2]
        excess = (plans.abs() - LIMIT).clamp_min(0.0)
        rough = self.smoothness.to(plans) * bend.square().sum(dim=(2, 3))
        found: Tensor = collisions + rough + self.limits * excess.square().sum(dim=(2, 3))
        return found


def hinge(distance: Tensor, margin: Tensor) -> Tensor:
    """What a sphere costs: 0 beyond the margin, quadratic within, linear in contact.

    The obstacle cost of CHOMP (Ratliff et al. 2009). Its slope has no jump, so that rounding does
    not decide which way a plan is pushed.

    >>> hinge(torch.tensor([-0.1, 0.0, 0.1, 0.3]), torch.tensor(0.2)).tolist()
    [0.2000..., 0.1000..., 0.0250..., 0.0]
    """
    inside = (margin - distance).clamp_min(0.0)
    least = torch.minimum(inside, margin)
    return least * (inside - 0.5 * least) / margin


def between(plans: Tensor, fineness: int) -> Tensor:
    """Every frame of plans (..., frames, joints), and poses on the straight lines between two.

    >>> between(torch.tensor([[0.0], [1.0], [3.0]]), 2).flatten().tolist()
    [0.0, 0.5, 1.0, 2.0, 3.0]
    """
    first, last = plans[..., :-1, None, :], plans[..., 1:, None, :]
    share = torch.arange(fineness, device=plans.device, dtype=plans.dtype)[:, None] / fineness
    inner = (first + share * (last - first)).flatten(-3, -2)
    return torch.cat([inner, plans[..., -1:, :]], dim=-2)
