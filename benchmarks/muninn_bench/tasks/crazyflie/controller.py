"""From a plan to motor commands: setpoints at 100 Hz, and geometric tracking control on SE(3).

The spline follows planned positions and velocities at the planned times. The reference is a point
that is drawn to the spline with bounded velocity and acceleration; it goes on from where it is when
a new plan, or a hold, takes over, so setpoints never jump.

Control is that of Lee, Leok and McClamroch (CDC 2010). The outer loop runs at the setpoint rate on
the estimated state and asks for a thrust vector; the inner loop turns the body to it at the physics
rate with the gyroscope. An observer estimates the acceleration that thrust does not explain (wind),
and the outer loop takes it away; unlike an integral of the position error it does not depend on the
reference, which replanning moves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.crazyflie.model import GRAVITY, INERTIA, MASS, MIXER, MOTOR_RANGE
from muninn_bench.tasks.paths import fitted

UP = np.array([0.0, 0.0, 1.0])
POSITION, VELOCITY = 9.0, 5.5  # gains of their errors, 1/s^2 and 1/s
ATTITUDE, RATES = np.array([220.0, 220.0, 60.0]), np.array([24.0, 24.0, 12.0])  # about x, y, z
OBSERVER = 3.0  # bandwidth of the wind observer, rad/s
LARGEST_TILT = 0.6  # of the thrust vector, radians
TOP_SPEED = 2.2  # of setpoints, m/s: a fifth above the training runs'
TOP_ACCELERATION = 5.0  # of setpoints, m/s^2
REST = 0.15  # below this speed a plan begins at rest, m/s
LEFT = 0.01  # a plan that is so far from its first place has left it, metres
# The reference closes in on the spline as a critically damped oscillator of 10 rad/s.
_STIFFNESS = 100.0
_DAMPING = 20.0


class Setpoint(NamedTuple):
    """What is sent to the controller at 100 Hz: world units, (3,) each; the nose points along x."""

    position: FloatArray
    velocity: FloatArray
    acceleration: FloatArray


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


class GeometricController:
    """Motor commands that track setpoints; keeps the wind estimate and the wanted thrust."""

    def __init__(self) -> None:
        self.wind = np.zeros(3)
        self._expected: FloatArray | None = None
        self._thrust = GRAVITY * UP
        self._attitude = np.eye(3)

    def command(
        self,
        setpoint: Setpoint,
        position: FloatArray,
        velocity: FloatArray,
        rotation: FloatArray,
        seconds: float,
    ) -> None:
        """The outer loop, every ``seconds``: wanted thrust and attitude from the sensed state."""
        self._observe(velocity, rotation, seconds)
        wanted = (
            setpoint.acceleration
            + POSITION * (setpoint.position - position)
            + VELOCITY * (setpoint.velocity - velocity)
            + GRAVITY * UP
            - self.wind
        )
        wanted[2] = max(wanted[2], 0.3 * GRAVITY)
        sideways = math.hypot(wanted[0], wanted[1])
        allowed = math.tan(LARGEST_TILT) * wanted[2]
        if sideways > allowed:
            wanted[:2] *= allowed / sideways
        self._thrust = wanted
        axis_z = wanted / math.sqrt(float(wanted @ wanted))
        axis_y = _cross(axis_z, np.array([1.0, 0.0, 0.0]))
        axis_y /= math.sqrt(float(axis_y @ axis_y))
        self._attitude = np.stack([_cross(axis_y, axis_z), axis_y, axis_z], axis=1)

    def motors(self, rotation: FloatArray, rates: FloatArray) -> FloatArray:
        """The inner loop: motor thrusts (4,), newtons, saturated; attitude before thrust."""
        turn = self._attitude.T @ rotation
        error = 0.5 * np.array(
            [turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]]
        )
        torque = INERTIA * (-ATTITUDE * error - RATES * rates)
        torque += _cross(rates, INERTIA * rates)
        thrust = MASS * float(self._thrust @ rotation[:, 2])
        turning = MIXER[:, 1:] @ torque
        # Where both do not fit, the body still turns; lift gives way.
        low, high = MOTOR_RANGE
        lift = min(max(thrust / 4.0, low - turning.min()), high - turning.max())
        return np.asarray(np.clip(lift + turning, low, high))

    def _observe(self, velocity: FloatArray, rotation: FloatArray, seconds: float) -> None:
        if self._expected is None:
            self._expected = velocity.copy()
            return
        lift = max(float(self._thrust @ rotation[:, 2]), 0.0)
        surprise = velocity - self._expected
        self.wind = self.wind + seconds * OBSERVER**2 * surprise
        known = lift * rotation[:, 2] - GRAVITY * UP + self.wind
        self._expected = self._expected + seconds * (known + 2.0 * OBSERVER * surprise)


def _cross(a: FloatArray, b: FloatArray) -> FloatArray:
    """``np.cross`` of two vectors (3,), without its overhead."""
    return np.array(
        [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    )
