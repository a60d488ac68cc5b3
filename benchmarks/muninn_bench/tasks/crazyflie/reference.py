"""From a plan to 100 Hz setpoints: a spline in time, followed within bounds.

The spline follows planned positions and velocities at the planned times. The reference is a point
that is drawn to the spline with bounded velocity and acceleration; it goes on from where it is when
a new plan, or a hold, takes over, so setpoints never jump.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.crazyflie.controller import Setpoint
from muninn_bench.tasks.paths import fitted

TOP_SPEED = 2.2  # of setpoints, m/s: a fifth above the training runs'
TOP_ACCELERATION = 5.0  # of setpoints, m/s^2
REST = 0.15  # below this speed a plan begins at rest, m/s
LEFT = 0.01  # a plan that is so far from its first place has left it, metres
# The reference closes in on the spline as a critically damped oscillator of 10 rad/s.
_STIFFNESS = 100.0
_DAMPING = 20.0


class PlanSpline:
    """A curve in time along a plan: C1, at rest after its end.

    It has the planned velocities, and goes through the places that fit them and the positions;
    frames are those in metres and m/s, (frames, 6).
    """

    def __init__(self, frames: FloatArray, frame_seconds: float) -> None:
        self.seconds = frame_seconds * (len(frames) - 1)
        slopes = frames[:, 3:].copy()
        slopes[-1] = 0.0
        places = fitted(frames[:, :3], slopes, frame_seconds)
        times = frame_seconds * np.arange(len(frames))
        self._position = CubicHermiteSpline(times, places, slopes)
        self._velocity = self._position.derivative()
        self._acceleration = self._position.derivative(2)

    def leaves(self) -> float:
        """Seconds until a plan that begins at rest has left its place; 0 if it does not.

        Runs of the training data stand still for two tenths of a second. A plan from rest that is
        replaced after one would never leave.
        """
        if float(np.linalg.norm(self._velocity(0.0))) >= REST:
            return 0.0
        times = np.linspace(0.0, 0.3, 16)
        away = np.linalg.norm(self._position(times) - self._position(0.0), axis=1)
        return float(times[(away > LEFT).argmax()])

    def at(self, time: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Position, velocity and acceleration at a time after the first frame, (3,) each."""
        if time >= self.seconds:
            return self._position(self.seconds), np.zeros(3), np.zeros(3)
        return self._position(time), self._velocity(time), self._acceleration(time)

    def sampled(self, step: float = 0.02) -> FloatArray:
        """Positions every ``step`` seconds, (samples, 3)."""
        times = np.linspace(0.0, self.seconds, round(self.seconds / step) + 1)
        return np.asarray(self._position(times))


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
