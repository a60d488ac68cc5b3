"""Recorded episodes with rewards, on the device: windows with their returns, and transitions.

A frame holds an observation, the action that was taken there, and the reward that followed. An
episode of ``limit`` frames was ended by the clock and would have gone on; a shorter one is over.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

from muninn.errors import InputError
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.runs import Runs


class Transitions(NamedTuple):
    """One step each, in the coordinates of the network; rewards are in the world's units."""

    observation: Tensor  # (batch, observation)
    action: Tensor  # (batch, action)
    reward: Tensor  # (batch,)
    after: Tensor  # the next observation
    goes_on: Tensor  # (batch,): 0 where the episode is over, else 1
    returns: Tensor  # (batch,): discounted rewards from here on
    place: Tensor  # (batch,): the frame of the next observation, of those of ``observations``


class Experience:
    """Episodes on a device.

    Args:
        runs: frames of observation, action and reward; ``state_channels`` is the observation's.
        coordinates: of observation and action.
        horizon: frames of a window.
        limit: frames of an episode that the clock ended.
        discount: of rewards, a step.

    Raises:
        InputError: frames have no place for an action and a reward, or a value is not finite.
    """

    def __init__(
        self,
        runs: Runs,
        coordinates: Coordinates,
        horizon: int,
        limit: int,
        discount: float,
        device: torch.device,
    ) -> None:
        channels = runs.frames.shape[1]
        self.observation, self.action = (
            runs.state_channels, channels - runs.state_channels - 1
        )  # fmt: skip
        if self.action < 1:
            raise InputError(
                f"frames of {channels} channels hold no action and reward after "
                f"{runs.state_channels} of an observation; record them with `muninn-bench data`"
            )
        if not np.isfinite(runs.frames).all():
            raise InputError(
                "the data holds observations, actions or rewards that are not finite; record it "
                "again with `muninn-bench data`"
            )
        rewards, offsets = runs.frames[:, -1], runs.offsets
        self._frames = coordinates.normalise(torch.from_numpy(runs.frames[:, :-1])).to(device)
        self._rewards = torch.from_numpy(rewards.copy()).to(device)
        self._returns = torch.from_numpy(discounted(rewards, offsets, limit, discount)).to(device)
        lengths = np.diff(offsets)
        timed_out = lengths >= limit
        last = np.repeat(offsets[1:] - 1, lengths)
        left = last - np.arange(len(last))
        clock = np.repeat(timed_out, lengths)
        # A window that the clock cut short would show a robot that stops; a fall is real.
        starts = np.flatnonzero(~clock | (left >= min(horizon, limit) - 1))
        steps = np.flatnonzero(~clock | (left > 0))
        self._starts = torch.from_numpy(starts).to(device)
        self._steps = torch.from_numpy(steps).to(device)
        self._last = torch.from_numpy(last).to(device)
        self._clock = torch.from_numpy(clock).to(device)
        self._ahead = torch.arange(horizon, device=device)

    def windows(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Plans (count, horizon, channels), held at an episode's last frame; returns (count,)."""
        first = self._drawn(self._starts, count, generator)
        frames = torch.minimum(first[:, None] + self._ahead, self._last[first][:, None])
        return self._frames[frames], self._returns[first]

    def transitions(self, count: int, generator: torch.Generator) -> Transitions:
        """Steps drawn with equal chance."""
        now = self._drawn(self._steps, count, generator)
        after = torch.minimum(now + 1, self._last[now])
        over = (after == now) & ~self._clock[now]
        here = self._frames[now]
        return Transitions(
            here[:, : self.observation],
            here[:, self.observation :],
            self._rewards[now],
            self._frames[after, : self.observation],
            1.0 - over.float(),
            self._returns[now],
            after,
        )

    @property
    def observations(self) -> Tensor:
        """Of all frames, (frames, observation)."""
        return self._frames[:, : self.observation]

    def return_range(self, share: float) -> tuple[float, float, float]:
        """Mean and standard deviation of returns, and the return that ``share`` are below."""
        found = self._returns[self._starts].double()
        ordered = found.sort().values
        at = min(int(share * len(ordered)), len(ordered) - 1)
        return float(found.mean()), float(found.std(correction=0)), float(ordered[at])

    def mean_reward(self) -> float:
        """Mean size of a reward."""
        return float(self._rewards.abs().mean())

    def _drawn(self, places: Tensor, count: int, generator: torch.Generator) -> Tensor:
        return places[
            torch.randint(len(places), (count,), generator=generator, device=places.device)
        ]


def discounted(
    rewards: NDArray[np.floating], offsets: NDArray[np.int64], limit: int, discount: float
) -> NDArray[np.float32]:
    """Discounted sum of rewards from each frame on, (frames,), in float32.

    What the clock cut off is filled in with the mean reward so far: the sum over the ``n`` frames
    that are left is divided by ``1 - discount ** n``.

    >>> discounted(np.ones(4), np.array([0, 1, 4]), limit=3, discount=0.5).tolist()
    [1.0, 2.0, 2.0, 2.0]
    """
    parts = []
    for first, end in pairwise(offsets):
        backwards = rewards[first:end][::-1].astype(np.float64)
        sums = lfilter([1.0], [1.0, -discount], backwards)[::-1]
        if end - first >= limit:
            sums = sums / (1.0 - discount ** np.arange(end - first, 0, -1))
        parts.append(sums)
    return np.concatenate(parts).astype(np.float32)
