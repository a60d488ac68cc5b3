"""Guidance by a cost: gradient steps inside a sampler step, written in the predicted noise.

At a guided timestep the sampler's step would go to a mean. Several gradient steps lead from there
to another plan, and the prediction becomes the one whose step lands on it. So guidance is part of
the prediction that a sampler consumes: a step that is forecast computes no gradient.

Gradient steps can lead from the clean plan that the prediction means instead. At the last step both
are the same. Before, a step goes only part of the way to the clean plan, so that a push of the mean
is a push of the clean plan 1.4 to 6 times as far (25 steps of a cosine schedule), which the next
steps take back: predictions at guided steps are then hard to forecast.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.denoiser import Denoiser, described, known_timestep
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray
from muninn_bench.networks.agent import Agent
from muninn_bench.planners.motion_cost import MotionCost
from muninn_bench.planners.motion_prior import MotionDenoiser, MotionPrior, boxes_of, inpaint_poses

CURVATURE = 32.0
"""Largest curvature of the roughness, twice 16: of a plan whose frames alternate."""

TOGETHER = {"cpu": 256, "cuda": 2048}
"""Plans that are pushed at once, by device: one of panda-clutter takes 6 MB, every pose of it being
compared with every box, and 512 calls of 32 plans would take 100 GB."""

Pushed = Literal["mean", "clean"]
"""What gradient steps lead away from: the mean of the sampler's step, or the clean plan."""


@dataclass(frozen=True, eq=False)
class Push:
    """How far each row of a call is pushed at each timestep, (timesteps, rows) each.

    Attributes:
        sizes: of a gradient step, in normalised joints a unit of gradient; 0 where the row is not
            guided.
        margins: metres from a box below which a sphere costs something.
        steps: gradient steps of one sampler step.
        pushed: what they lead away from.
    """

    sizes: FloatArray
    margins: FloatArray
    steps: int
    pushed: Pushed = "mean"

    def __post_init__(self) -> None:
        finite = np.isfinite(self.sizes).all() and np.isfinite(self.margins).all()
        if (
            self.sizes.shape != self.margins.shape
            or not (finite and (self.sizes >= 0.0).all() and (self.margins > 0.0).all())
            or self.steps < 1
            or self.pushed not in get_args(Pushed)
        ):
            raise InputError(
                "sizes of gradient steps are finite and at least 0, margins finite and above 0, "
                "(timesteps, rows) each; there is at least one gradient step, from the 'mean' or "
                f"the 'clean' plan; got sizes of shape {self.sizes.shape} from "
                f"{self.sizes.min():g}, margins of shape {self.margins.shape} from "
                f"{self.margins.min():g}, {self.steps} steps from {self.pushed!r}"
            )


class Descent(nn.Module):
    """Gradient steps on a cost, each row of a call with the sizes and margins of its timestep.

    The gradient of a frame counts with length 1 at most: no frame moves further than ``size`` in a
    gradient step, however deep it is in a box.

    Raises:
        InputError: a gradient step on the roughness overshoots, or the cost is of other rows.
    """

    sizes: Tensor
    margins: Tensor

    def __init__(self, cost: MotionCost, push: Push) -> None:
        super().__init__()
        largest, smoothness = push.sizes.max(axis=0), cost.smoothness.cpu().numpy()
        if largest.shape != smoothness.shape:
            raise InputError(
                f"the cost has weights for {len(smoothness)} rows, the push sizes for "
                f"{len(largest)}; give one weight for each row of a call"
            )
        steepest = CURVATURE * float((largest * smoothness).max())
        if steepest > 2.0:
            raise InputError(
                f"a gradient step of size times smoothness {steepest / CURVATURE:g} overshoots on "
                f"the roughness of a plan; keep the product at or below {2.0 / CURVATURE:g}"
            )
        self.cost, self.steps, self.pushed = cost, push.steps, push.pushed
        self.register_buffer("sizes", torch.from_numpy(push.sizes).float())
        self.register_buffer("margins", torch.from_numpy(push.margins).float())

    def forward(self, plans: Tensor, timestep: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Displacements of plans (batch, rows, frames, joints), and which rows are guided."""
        # Tensors made in inference mode could not be kept for the way back.
        with torch.inference_mode(False), torch.enable_grad():
            size = self.sizes[timestep][..., None, None].to(plans)
            margin = self.margins[timestep].to(plans)
            calls = max(1, TOGETHER.get(plans.device.type, 256) // plans.shape[1])
            parts = (torch.split(each, calls) for each in (plans, size, margin, context))
            moved = [self._displaced(*part) for part in zip(*parts, strict=True)]
        return torch.cat(moved), size > 0.0

    def _displaced(self, plans: Tensor, size: Tensor, margin: Tensor, context: Tensor) -> Tensor:
        """Displacements of the plans of some calls."""
        boxes = boxes_of(context, plans.shape[-1]).clone()
        first = inpaint_poses(plans.clone(), context)
        inner = torch.ones_like(first)
        inner[:, :, :: plans.shape[2] - 1] = 0.0
        point = first
        for _ in range(self.steps):
            point = point.detach().requires_grad_(True)
            costs = self.cost(point, boxes, margin)
            (gradient,) = torch.autograd.grad(costs.sum(), point)
            length = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
            point = point - size * inner * gradient / length.clamp_min(1.0)
            point = point + 0.0 * costs[..., None, None]  # gradients may hide a NaN
        return point.detach() - first


class CostGuidance:
    """The effective prediction of a guided planner; see the module.

    A row whose cost is not finite gets a prediction that is not finite: whoever samples it is told.

    A step at which no row is guided takes no gradient where the host knows the timestep: in plain
    sampling and in fixed plans, captured ones too. Rounds have every call at its own timestep: run
    eagerly, the host reads them; captured, a graph cannot branch, and takes the gradient at every
    evaluation, with size 0 where no row is guided.

    Args:
        denoiser: predicts the noise in plans (batch, rows, frames, joints).
        objective: pushes plans.
        sampler: visits every timestep of ``objective``, and bounds clean plans.

    Raises:
        InputError: the sampler is another.
    """

    def __init__(self, denoiser: Denoiser, objective: Descent, sampler: Sampler) -> None:
        times = [step.timestep for step in sampler.steps]
        every = sorted(times) == list(range(len(objective.sizes)))
        if not every or sampler.kind != "epsilon" or sampler.clip is None or sampler.keep_epsilon:
            raise InputError(
                f"guidance by a cost is for samplers that visit all {len(objective.sizes)} "
                "timesteps of its table, consume epsilon, and take a step from the clipped plan "
                f"alone; got {sampler.describe()}"
            )
        self.denoiser, self.objective, self.clip = denoiser, objective, sampler.clip
        at = np.argsort(times)
        levels = [sampler.affine(int(step), "epsilon")[:4] for step in at]
        if objective.pushed == "clean":  # the mean of a step that goes all the way
            levels = [(*level[:2], 1.0, 0.0) for level in levels]
        self._levels = torch.tensor(levels, dtype=torch.float64)
        guided = torch.nonzero(objective.sizes.amax(dim=1) > 0.0)
        self._last = int(guided.max()) if len(guided) else -1

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        return self.guide(self.denoiser(x, timestep, context), x, timestep, context)

    def guide(self, prediction: Tensor, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """The effective prediction, given the denoiser's own; computes the gradients."""
        if self._levels.device != x.device:  # once: a captured call must not read from the host
            self._levels = self._levels.to(x.device)
        if not self._guides(timestep):
            return prediction
        levels = self._levels[timestep].to(x)
        from_x, from_noise, from_clean, from_state = levels[..., None, None, None].unbind(dim=1)
        raw = x * from_x + prediction * from_noise
        clean = raw.clamp(-self.clip, self.clip)
        mean = clean * from_clean + x * from_state
        moved, guided = self.objective(mean, timestep, context)
        wanted = clean + moved / from_clean
        return torch.where(guided, prediction + (wanted - raw) / from_noise, prediction)

    def _guides(self, timestep: Tensor) -> bool:
        """Whether a row may be guided at its timestep."""
        if timestep.is_cuda:
            _set_up(timestep.device)
        known = known_timestep()
        if known is not None:
            return known <= self._last
        if torch.compiler.is_compiling():
            return True
        if timestep.is_cuda and torch.cuda.is_current_stream_capturing():
            return True
        return bool((timestep <= self._last).any())

    def describe(self) -> dict[str, Any]:
        """Identity for certificates; tables, weights and the arm are among what is hashed."""
        return {
            "guidance": "cost",
            "gradient_steps": self.objective.steps,
            "pushed": self.objective.pushed,
            "fineness": self.objective.cost.fineness,
            "denoiser": described(self.denoiser),
        }


def guided_planner(
    recipe: MotionPrior, agent: Agent, sampler: Sampler, cost: MotionCost, push: Push
) -> Planner:
    """A planner of as many plans a call as there are rows to push; a cost of its own is kept."""
    network = agent.networks["plan"]
    device = next(network.parameters()).device
    objective = Descent(copy.deepcopy(cost), push).to(device).train(network.training)
    return Planner(
        CostGuidance(MotionDenoiser(network), objective, sampler),
        sampler,
        (push.sizes.shape[1], recipe.horizon, recipe.joints),
        condition=inpaint_poses,
        device=device,
    )


@functools.cache
def _set_up(device: torch.device) -> None:
    """Have CUDA's libraries set up for gradients on a device: they cannot be during a capture.

    What is captured is run before, but perhaps at timesteps without a gradient.
    """
    with torch.inference_mode(False), torch.enable_grad():
        some = torch.ones(1, 4, 4, device=device, requires_grad=True)
        torch.autograd.grad((some @ some).sum(), some)
