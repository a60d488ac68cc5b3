"""What the controller follows: a plan on the clock, or a stop along it or straight ahead."""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.paths import fitted

HORIZON = 128
"""Frames of a plan: 128 s, longer than any route on this lake."""

FRAME_SECONDS = 1.0

SCREENED = 20.0
"""Seconds of a plan that are screened, from its first frame. What comes later is never run: a plan
is replaced within a few seconds, or the vessel brakes before."""

LONGEST_STOP = 15.0
"""Seconds in which a stop along a plan has ended, at up to 2.25 m/s; longer if it is damped."""

_BRAKING = 0.5
"""Deceleration of a stop straight ahead, m/s^2: what reverse thrust and drag manage at cruise."""

_SLOWING = 0.15
"""Deceleration of a stop along a plan, m/s^2. That water is free, so there is no hurry; and where
every other plan fails the screen, a vessel that stopped at each would never get away."""


def followed(frames: FloatArray) -> FloatArray:
    """The frames of a plan, world units, (frames, 4), at the places that it is followed through."""
    places = fitted(frames[:, :2], frames[:, 2:], FRAME_SECONDS)
    return np.concatenate([places, frames[:, 2:]], axis=1)


class PlanReference:
    """A plan as a cubic Hermite curve through its frames; its last frame is held for ever.

    Velocities are the curve's own derivative: a planner's velocity channels are learned, and agree
    with its positions only roughly. Frames are in world units, (frames, 4); ``begin`` is the
    episode's time at the first, ``joined`` that from which on it is followed, seconds; ``factor``
    is the share of its own speed at which it is followed.
    """

    def __init__(
        self, frames: FloatArray, begin: float, joined: float = 0.0, factor: float = 1.0
    ) -> None:
        self._begin, self._joined, self.factor = begin, joined, factor
        clock = FRAME_SECONDS * np.arange(len(frames))
        self._end = clock[-1]
        self._position = CubicHermiteSpline(clock, frames[:, :2], frames[:, 2:4])
        self._velocity = self._position.derivative()

    def at(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Positions and velocities over ground at the times (n,), each (n, 2)."""
        along = self._joined - self._begin + self.factor * (times - self._joined)
        along = np.clip(along, 0.0, self._end)
        velocity = self.factor * self._velocity(along)
        velocity[along >= self._end] = 0.0
        return self._position(along), velocity


class Stop:
    """Brakes along a plan and stays where that ends.

    A vessel in a bend that braked straight ahead would leave the water that its plan was screened
    for, towards what the plan goes round. A plan followed at a share of its speed ends in the same
    place: its stop is slower too, or a damped vessel would lose in one stop what it gains in many
    calls.
    """

    def __init__(self, plan: PlanReference, begin: float, slowing: float = _SLOWING) -> None:
        self._plan, self._begin = plan, begin
        self.factor = plan.factor
        planned = float(np.linalg.norm(plan.at(np.array([begin]))[1])) / self.factor
        self._seconds = min(max(planned / slowing, 1e-6), LONGEST_STOP) / self.factor

    def at(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        gone = np.minimum(np.maximum(times - self._begin, 0.0), self._seconds)
        left = 1.0 - gone / self._seconds
        position, velocity = self._plan.at(self._begin + gone * (1.0 + left) / 2.0)
        return position, velocity * left[:, None]


Reference = PlanReference | Stop
"""Where to be, and how fast, at times of the episode."""


def stop_ahead(position: FloatArray, velocity: FloatArray, begin: float) -> Stop:
    """A stop along a velocity over ground, (2,) each; never damped."""
    seconds = FRAME_SECONDS * np.arange(LONGEST_STOP / FRAME_SECONDS)[:, None]
    ahead = np.concatenate([position + velocity * seconds, velocity + 0.0 * seconds], axis=1)
    return Stop(PlanReference(ahead, begin, begin), begin, _BRAKING)
