"""Geometric tracking control on SE(3), after Lee, Leok and McClamroch (CDC 2010).

The outer loop runs at the setpoint rate on the estimated state and asks for a thrust vector; the
inner loop turns the body to it at the physics rate with the gyroscope. An observer estimates the
acceleration that thrust does not explain (wind), and the outer loop takes it away; unlike an
integral of the position error it does not depend on the reference, which replanning moves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.crazyflie.model import GRAVITY, INERTIA, MASS, MIXER, MOTOR_RANGE

UP = np.array([0.0, 0.0, 1.0])
POSITION, VELOCITY = 9.0, 5.5  # gains of their errors, 1/s^2 and 1/s
ATTITUDE, RATES = np.array([220.0, 220.0, 60.0]), np.array([24.0, 24.0, 12.0])  # about x, y, z
OBSERVER = 3.0  # bandwidth of the wind observer, rad/s
LARGEST_TILT = 0.6  # of the thrust vector, radians


class Setpoint(NamedTuple):
    """What is sent to the controller at 100 Hz: world units, (3,) each; the nose points along x."""

    position: FloatArray
    velocity: FloatArray
    acceleration: FloatArray


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
