"""The vessel: surge, sway and yaw after Fossen, two thrusters, wind on the hull.

``M nu' + C(nu) nu + D(nu) nu = tau + tau_wind`` with ``nu = (u, v, r)`` the velocity *through the
water*, in a current that changes slowly, so that ``eta' = R(psi) nu + current`` (Fossen, Handbook
of Marine Craft Hydrodynamics and Motion Control, 2011, section 8.3). The parameters are plausible
for a catamaran of 1.8 m with two thrusters; they are ours, and identified from no real one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from muninn.model.schedule import FloatArray


@dataclass(frozen=True)
class Hull:
    """Parameters in SI units; damping is ``linear + quadratic |speed|``.

    Attributes:
        mass_surge: mass and added mass, kg.
        mass_sway: mass and added mass, kg.
        inertia_yaw: moment of inertia, added one included, kg m^2.
        surge: linear and quadratic damping, N s/m and N s^2/m^2.
        sway: the same across.
        yaw: the same for turning, N m s and N m s^2.
        arm: of a thruster, from the middle line, m.
        thrust_low: most reverse thrust of one thruster, N.
        thrust_high: most forward thrust of one thruster, N.
        thrust_lag: seconds in which a thruster covers 63% of a step.
        wind: force per squared relative wind speed, ahead and across, N s^2/m^2.
    """

    mass_surge: float = 50.0
    mass_sway: float = 85.0
    inertia_yaw: float = 25.0
    surge: tuple[float, float] = (12.0, 18.0)
    sway: tuple[float, float] = (80.0, 150.0)
    yaw: tuple[float, float] = (15.0, 15.0)
    arm: float = 0.35
    thrust_low: float = -45.0
    thrust_high: float = 75.0
    thrust_lag: float = 0.25
    wind: tuple[float, float] = (0.12, 0.25)

    def drag_surge(self, u: float) -> float:
        """Force that holds a surge speed through the water, N."""
        return (self.surge[0] + self.surge[1] * abs(u)) * u

    def drag_yaw(self, r: float) -> float:
        """Moment that holds a turn rate, N m."""
        return (self.yaw[0] + self.yaw[1] * abs(r)) * r

    def top_speed(self) -> float:
        """Steady surge speed at full thrust: the positive root of drag = thrust, m/s."""
        linear, quadratic = self.surge
        force = 2.0 * self.thrust_high
        return (math.sqrt(linear * linear + 4.0 * quadratic * force) - linear) / (2.0 * quadratic)


class Vessel:
    """The true state, stepped with scalars: faster than arrays of this size.

    Attributes:
        x, y, heading: metres and radians (not wrapped).
        u, v, r: through the water, m/s and rad/s.
        left, right: present thrusts, N.
    """

    __slots__ = ("heading", "hull", "left", "r", "right", "u", "v", "x", "y")

    def __init__(self, hull: Hull, x: float, y: float, heading: float) -> None:
        self.hull = hull
        self.x, self.y, self.heading = x, y, heading
        self.u = self.v = self.r = 0.0
        self.left = self.right = 0.0

    def set_ground_velocity(self, vx: float, vy: float, current: tuple[float, float]) -> None:
        """Give the vessel a velocity over ground in a current."""
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        across, along = vx - current[0], vy - current[1]
        self.u = cos * across + sin * along
        self.v = -sin * across + cos * along

    def ground_velocity(self, current: tuple[float, float]) -> tuple[float, float]:
        """Velocity over ground, m/s."""
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        return cos * self.u - sin * self.v + current[0], sin * self.u + cos * self.v + current[1]

    def energy(self) -> float:
        """Kinetic energy of the motion through the water, J."""
        hull = self.hull
        return 0.5 * (
            hull.mass_surge * self.u * self.u
            + hull.mass_sway * self.v * self.v
            + hull.inertia_yaw * self.r * self.r
        )

    def step(
        self,
        left: float,
        right: float,
        current: tuple[float, float],
        wind: tuple[float, float],
        seconds: float,
    ) -> None:
        """Semi-implicit Euler: velocities first, positions with the new ones.

        Args:
            left: commanded thrust, saturated here, N.
            right: the other one's.
            current: of the water, m/s.
            wind: over ground, m/s.
            seconds: a few milliseconds.
        """
        hull = self.hull
        low, high = hull.thrust_low, hull.thrust_high
        share = seconds / hull.thrust_lag
        self.left += share * (min(max(left, low), high) - self.left)
        self.right += share * (min(max(right, low), high) - self.right)
        u, v, r = self.u, self.v, self.r
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        ahead = cos * wind[0] + sin * wind[1] - u
        across = -sin * wind[0] + cos * wind[1] - v
        speed = math.sqrt(ahead * ahead + across * across)
        mass_u, mass_v = hull.mass_surge, hull.mass_sway
        linear_u, quadratic_u = hull.surge
        linear_v, quadratic_v = hull.sway
        linear_r, quadratic_r = hull.yaw
        force_u = self.left + self.right + hull.wind[0] * speed * ahead + mass_v * v * r
        force_v = hull.wind[1] * speed * across - mass_u * u * r
        moment = hull.arm * (self.right - self.left) + (mass_u - mass_v) * u * v
        u += seconds * (force_u - (linear_u + quadratic_u * abs(u)) * u) / mass_u
        v += seconds * (force_v - (linear_v + quadratic_v * abs(v)) * v) / mass_v
        r += seconds * (moment - (linear_r + quadratic_r * abs(r)) * r) / hull.inertia_yaw
        self.u, self.v, self.r = u, v, r
        self.heading += seconds * r
        self.x += seconds * (cos * u - sin * v + current[0])
        self.y += seconds * (sin * u + cos * v + current[1])


class Weather:
    """Current and wind of one episode: a mean of random strength, and slow waves around it.

    Currents reach 0.25 m/s and wind 5 m/s, each a third more in the worst moment; currents change
    over one to three minutes, gusts come every 10 to 40 s. Waves are not simulated.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        self._current = _Wandering(generator, 0.25, (60.0, 180.0))
        self._wind = _Wandering(generator, 5.0, (10.0, 40.0))

    def current(self, time: float) -> tuple[float, float]:
        """Velocity of the water, m/s."""
        return self._current.at(time)

    def wind(self, time: float) -> tuple[float, float]:
        """Velocity of the air, m/s."""
        return self._wind.at(time)


class _Wandering:
    """A vector of at most ``largest`` plus two sinusoids of random period and direction."""

    def __init__(
        self, generator: np.random.Generator, largest: float, periods: tuple[float, float]
    ) -> None:
        strength, towards = generator.uniform(0.0, largest), generator.uniform(0.0, 2.0 * math.pi)
        self._mean = (strength * math.cos(towards), strength * math.sin(towards))
        self._waves: list[tuple[float, float, float, float]] = []
        for _ in range(2):
            turn, phase = generator.uniform(0.0, 2.0 * math.pi, 2)
            pace = 2.0 * math.pi / generator.uniform(*periods)
            size = strength / 6.0
            self._waves.append((pace, phase, size * math.cos(turn), size * math.sin(turn)))

    def at(self, time: float) -> tuple[float, float]:
        x, y = self._mean
        for pace, phase, across, along in self._waves:
            wave = math.sin(pace * time + phase)
            x += across * wave
            y += along * wave
        return x, y


def thrusts(hull: Hull, force: float, moment: float) -> tuple[float, float]:
    """Left and right thrust of a force and a moment; turning has priority where both do not fit."""
    reach = 0.5 * (hull.thrust_high - hull.thrust_low)
    difference = min(max(0.5 * moment / hull.arm, -reach), reach)
    room = abs(difference)
    mean = min(max(0.5 * force, hull.thrust_low + room), hull.thrust_high - room)
    return mean - difference, mean + difference


def wrap(angle: float) -> float:
    """The same angle in [-pi, pi)."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def as_array(vessel: Vessel) -> FloatArray:
    """Pose and velocity through the water, (6,)."""
    return np.array([vessel.x, vessel.y, vessel.heading, vessel.u, vessel.v, vessel.r])
