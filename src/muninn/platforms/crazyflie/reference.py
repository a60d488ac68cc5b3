"""From a plan to 100 Hz setpoints: a spline in time, followed within bounds.

The spline goes through the planned positions at the planned times. The reference is a point that is
drawn to the spline with bounded velocity and acceleration; it goes on from where it is when a new
plan, or a hold, takes over, so setpoints never jump.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from muninn.platforms.crazyflie.controller import Setpoint
from muninn.platforms.crazyflie.model import FloatArray

TOP_SPEED = 2.2
"""Of setpoints, m/s: a fifth above the training runs'."""

TOP_ACCELERATION = 5.0
"""Of setpoints, m/s^2."""

# The reference closes in on the spline as a critically damped oscillator of 10 rad/s.
_STIFFNESS = 100.0
_DAMPING = 20.0


class PlanSpline:
    """A curve through planned positions: C1, at rest after its end.

    Args:
        positions: metres, (frames, 3).
        velocity: at the first frame, m/s, (3,).
        frame_seconds: between frames.
    """

    def __init__(self, positions: FloatArray, velocity: FloatArray, frame_seconds: float) -> None:
        self.seconds = frame_seconds * (len(positions) - 1)
        slopes = np.gradient(positions, frame_seconds, axis=0)
        slopes[0], slopes[-1] = velocity, 0.0
        times = frame_seconds * np.arange(len(positions))
        self._position = CubicHermiteSpline(times, positions, slopes)
        self._velocity = self._position.derivative()
        self._acceleration = self._position.derivative(2)

    def at(self, time: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Position, velocity and acceleration at a time after the first frame, (3,) each."""
        if time >= self.seconds:
            return self._position(self.seconds), np.zeros(3), np.zeros(3)
        return self._position(time), self._velocity(time), self._acceleration(time)

    def sampled(self, step: float = 0.02) -> FloatArray:
        """Positions every ``step`` seconds, (samples, 3)."""
        samples: FloatArray = self._position(
            np.linspace(0.0, self.seconds, round(self.seconds / step) + 1)
        )
        return samples


class Reference:
    """The moving setpoint, at rest at a place to begin with."""

    def __init__(self, place: FloatArray) -> None:
        self.position = place.copy()
        self.velocity = np.zeros(3)
        self._spline: PlanSpline | None = None
        self._time, self._factor = 0.0, 1.0
        self._place = place.copy()

    @property
    def planned_velocity(self) -> FloatArray:
        """The velocity of the plan itself, without damping, m/s, (3,)."""
        return self.velocity if self._spline is None else self._spline.at(self._time)[1]

    @property
    def holding(self) -> bool:
        """Is it drawn to a place instead of a plan?"""
        return self._spline is None

    def follow(self, spline: PlanSpline, time: float, factor: float) -> None:
        """Follow a plan from the given time after its first frame, at a share of its speed."""
        self._spline, self._time, self._factor = spline, time, factor

    def hold(self, place: FloatArray) -> None:
        """Come to rest at a place, (3,)."""
        self._spline, self._place, self._factor = None, place.copy(), 1.0

    def restart(self, position: FloatArray, velocity: FloatArray) -> None:
        """Go on from another state, (3,) each, to what is followed or held."""
        self.position, self.velocity = position.copy(), _limited(velocity, TOP_SPEED)

    def next(self, seconds: float) -> Setpoint:
        """The next setpoint; time passes by ``seconds``, along the plan by factor times that."""
        target, speed, push = self._place, np.zeros(3), np.zeros(3)
        if self._spline is not None:
            self._time += self._factor * seconds
            target, speed, push = self._spline.at(self._time)
            speed, push = self._factor * speed, self._factor**2 * push
        speed = _limited(speed, TOP_SPEED)
        pull = push + _STIFFNESS * (target - self.position) + _DAMPING * (speed - self.velocity)
        before = self.velocity
        self.velocity = _limited(before + seconds * _limited(pull, TOP_ACCELERATION), TOP_SPEED)
        self.position = self.position + seconds * self.velocity
        return Setpoint(self.position, self.velocity, (self.velocity - before) / seconds)


def _limited(vector: FloatArray, most: float) -> FloatArray:
    """The vector, shortened to a length of at most ``most``."""
    length = float(np.sqrt(vector @ vector))
    return vector if length <= most else vector * (most / length)
