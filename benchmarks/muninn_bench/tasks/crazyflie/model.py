"""The Crazyflie in MuJoCo: one rigid body, four motors with lag, drag, wind.

Parameters are those of a Crazyflie 2.1 with its standard motors, as the ``drone-models`` package
(0.1.0, ``cf2x_L250``) lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muninn.model.schedule import FloatArray

MASS = 0.0319  # kilograms
INERTIA = np.array([16.8e-6, 16.8e-6, 29.8e-6])  # about x (forward), y (left), z (up), kg m^2
ARM = 0.03253  # from the centre to a motor along x and along y, metres
TORQUE_PER_THRUST = 0.00735  # of a propeller about z, metres
MOTOR_RANGE = (0.0128, 0.12)  # thrust of one motor, newtons
MOTOR_SECONDS = 0.03  # time constant with which thrust follows its command
DRAG = np.array([0.0147, 0.0147, 0.0128])  # newtons per m/s of air speed, along world axes
GRAVITY = 9.81  # m/s^2
PHYSICS_STEP = 0.002  # seconds

# Motors: front right, back right, back left, front left; a propeller turning clockwise (seen from
# above) pushes the body counter-clockwise.
_MOTORS = np.array([[1, -1, -1], [-1, -1, 1], [-1, 1, -1], [1, 1, 1]])

_FORWARD, _LEFT, _SPIN = _MOTORS.T
MIXER = np.linalg.inv(
    np.stack([np.ones(4), ARM * _LEFT, -ARM * _FORWARD, TORQUE_PER_THRUST * _SPIN])
)
"""(thrust, torque x, y, z) to the thrusts of the four motors, (4, 4)."""


def build_xml() -> str:
    """The MJCF: the drone with its four motors; nothing collides in it."""
    sites, motors = [], []
    low, high = MOTOR_RANGE
    for index, (x, y, spin) in enumerate(_MOTORS):
        sites.append(f'<site name="m{index}" pos="{ARM * x} {ARM * y} 0"/>')
        motors.append(
            f'<general site="m{index}" gear="0 0 1 0 0 {TORQUE_PER_THRUST * spin}" '
            f'dyntype="filterexact" dynprm="{MOTOR_SECONDS}" ctrllimited="true" '
            f'ctrlrange="{low} {high}" gaintype="fixed" gainprm="1" biastype="none"/>'
        )
    ix, iy, iz = INERTIA
    return f"""<mujoco model="crazyflie">
  <option timestep="{PHYSICS_STEP}" gravity="0 0 -{GRAVITY}" integrator="RK4"/>
  <worldbody>
    <body name="drone">
      <freejoint/>
      <inertial pos="0 0 0" mass="{MASS}" diaginertia="{ix} {iy} {iz}"/>
      {"".join(sites)}
    </body>
  </worldbody>
  <actuator>{"".join(motors)}</actuator>
</mujoco>"""


@dataclass(frozen=True)
class Wind:
    """Air that moves: a steady horizontal part and gusts, an Ornstein-Uhlenbeck process."""

    steady: float = 0.6  # most of the steady part, m/s; uniform, and so is its direction
    gusts: float = 0.3  # standard deviation along each axis, m/s (vertically half)
    gust_seconds: float = 1.0  # correlation time


class Air:
    """The wind of one episode, sampled at equal steps of time."""

    def __init__(self, wind: Wind, step: float, generator: np.random.Generator) -> None:
        angle, speed = generator.uniform(0.0, 2.0 * np.pi), wind.steady * generator.random()
        self._steady = speed * np.array([np.cos(angle), np.sin(angle), 0.0])
        self._spread = wind.gusts * np.array([1.0, 1.0, 0.5])
        self._keep = np.exp(-step / wind.gust_seconds)
        self._generator = generator
        self._gust = self._spread * generator.standard_normal(3)

    def next(self) -> FloatArray:
        """Velocity of the air over the next step, m/s, (3,)."""
        velocity: FloatArray = self._steady + self._gust
        fresh = np.sqrt(1.0 - self._keep**2) * self._spread * self._generator.standard_normal(3)
        self._gust = self._keep * self._gust + fresh
        return velocity


class Drone:
    """The simulated drone, at rest at a place, hovering."""

    def __init__(self, place: FloatArray) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model = mujoco.MjModel.from_xml_string(build_xml())
        self._data = mujoco.MjData(self._model)
        self._body = self._model.body("drone").id
        self._data.qpos[:3] = place
        self._data.act[:] = MASS * GRAVITY / 4.0
        mujoco.mj_forward(self._model, self._data)

    @property
    def position(self) -> FloatArray:
        """World, metres, (3,)."""
        return np.array(self._data.qpos[:3])

    @property
    def velocity(self) -> FloatArray:
        """World, m/s, (3,)."""
        return np.array(self._data.qvel[:3])

    @property
    def rotation(self) -> FloatArray:
        """Body to world, (3, 3)."""
        matrix = np.empty(9)
        self._mujoco.mju_quat2Mat(matrix, self._data.qpos[3:7])
        return matrix.reshape(3, 3)

    @property
    def rates(self) -> FloatArray:
        """Angular velocity in the body frame, rad/s, (3,)."""
        return np.array(self._data.qvel[3:6])

    def step(self, motors: FloatArray, air: FloatArray) -> None:
        """One physics step with commanded motor thrusts (4,), newtons, in moving air (3,), m/s."""
        self._data.ctrl[:] = motors
        self._data.xfrc_applied[self._body, :3] = DRAG * (air - self._data.qvel[:3])
        self._mujoco.mj_step(self._model, self._data)
