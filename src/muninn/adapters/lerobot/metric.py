"""A metric for calibration: the distance between executed actions, in their physical units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from muninn.certify.metrics import Metric
from muninn.errors import InputError

Limits = Sequence[float] | Mapping[tuple[int, ...], float]


def executed_actions(
    policy: Any, postprocessor: Callable[[Tensor], Tensor], limits: Limits | None = None
) -> Metric:
    """A metric: how far the actions that the robot executes are apart, in their physical units.

    It compares the ``n_action_steps`` actions that the policy queues from a plan, un-normalised
    and without padding. They begin with the one of the newest observation, which for a
    DiffusionPolicy is not the first of the plan.

    Args:
        postprocessor: the policy's own; normalised actions (batch, action) to physical ones.
        limits: largest acceptable differences, in the unit of the action: one per channel, or one
            per group of channels for Euclidean distances, as in
            ``{(0, 1, 2): 0.002, (3, 4, 5): math.radians(1), (6,): 0.1}``. The metric is then the
            largest share of its limit that is taken up at any step: calibrate with
            ``tolerance=1``. ``math.inf`` leaves a channel out. Without limits it is the largest
            Euclidean distance of all channels at any step.
    """
    config = policy.config
    size = config.action_feature.shape[0]
    first = config.n_obs_steps - 1
    last = first + config.n_action_steps
    groups = {tuple(range(size)): 1.0} if limits is None else _groups(limits, size)

    executed = _Executed(policy, postprocessor, slice(first, last), size)
    deviation = partial(_largest_share, executed, groups)

    shown = [f"{'+'.join(map(str, group))}={limit:g}" for group, limit in groups.items()]
    if not isinstance(limits, Mapping):
        shown = [f"{limit:g}" for limit in groups.values()]
    within = "" if limits is None else f":within:{','.join(shown)}"
    # In certificates.
    deviation.__qualname__ = f"executed_actions:{first}-{last - 1}{within}"  # type: ignore[attr-defined]
    return deviation


@dataclass(frozen=True)
class _Executed:
    """The actions of plans that the robot executes, (batch, steps, channels), as it gets them."""

    policy: Any
    postprocessor: Callable[[Tensor], Tensor]
    steps: slice
    size: int

    def __call__(self, plans: Tensor) -> Tensor:
        actions = plans[:, self.steps, : self.size]
        if getattr(self.policy.config, "adapt_to_pi_aloha", False):
            actions = self.policy._pi_aloha_encode_actions(actions.clone())  # it writes in place
        return self.postprocessor(actions.reshape(-1, self.size)).reshape(actions.shape)


def _largest_share(
    executed: _Executed, groups: Mapping[tuple[int, ...], float], full: Tensor, cached: Tensor
) -> Tensor:
    """A function of the module, not of a call: it travels to worker processes."""
    difference = executed(full) - executed(cached)
    shares = [
        torch.linalg.vector_norm(difference[:, :, list(channels)], dim=2) / limit
        for channels, limit in groups.items()
    ]
    return torch.stack(shares).amax(dim=(0, 2))


def _groups(limits: Limits, size: int) -> dict[tuple[int, ...], float]:
    """Channels and their limit; every channel of the action in one group."""
    try:
        grouped = isinstance(limits, Mapping)
        each: Any = limits if grouped else {(i,): limit for i, limit in enumerate(limits)}
        channels = sorted(channel for group in each for channel in group)
        if channels == list(range(size)) and all(limit > 0.0 for limit in each.values()):
            return dict(each)
    except TypeError:  # one number, or a channel instead of a group: they could mean either
        pass
    raise InputError(
        f"limits must be {size} positive numbers, one per action channel, or name each of the "
        f"channels 0 to {size - 1} in one group, a tuple ((0,) for channel 0 alone); got {limits!r}"
    )
