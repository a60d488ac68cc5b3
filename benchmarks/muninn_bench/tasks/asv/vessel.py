"""The vessel: surge, sway and yaw after Fossen, two thrusters, wind on the hull.

``M nu' + C(nu) nu + D(nu) nu = tau + tau_wind`` with ``nu = (u, v, r)`` the velocity *through the
water*, in a current that changes slowly, so that ``eta' = R(psi) nu + current`` (Fossen, Handbook
of Marine Craft Hydrodynamics and Motion Control, 2011, section 8.3). The parameters are plausible
for a catamaran of 1.8 m with two thrusters; they are ours, and identified from no real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from muninn.model.schedule import FloatArray

Velocity = tuple[float, float]
"""In the world, m/s."""

Angle = TypeVar("Angle", float, FloatArray)


@dataclass(frozen=True)
class Hull:
    """Parameters in SI units; masses include the added mass."""

    mass_surge: float = 50.0
    mass_sway: float = 85.0
    inertia_yaw: float = 25.0
    surge: tuple[float, float] = (12.0, 18.0)  # damping: linear, quadratic; see drag
    sway: tuple[float, float] = (80.0, 150.0)
    yaw: tuple[float, float] = (15.0, 15.0)
    arm: float = 0.35  # of a thruster, from the middle line
    thrust_low: float = -45.0  # of one thruster, in reverse
    thrust_high: float = 75.0
    thrust_lag: float = 0.25  # seconds in which a thruster covers 63% of a step
    wind: tuple[float, float] = (0.12, 0.25)  # N per squared relative wind, ahead and across


def drag(damping: tuple[float, float], speed: float) -> float:
    """Force, N, or moment, N m, that holds a speed through the water or a turn rate."""
    return (damping[0] + damping[1] * abs(speed)) * speed


class Vessel:
    """The true state, stepped with scalars: faster than arrays of this size."""

    __slots__ = ("heading", "hull", "left", "r", "right", "u", "v", "x", "y")

    def __init__(self, hull: Hull, x: float, y: float, heading: float) -> None:
        self.hull = hull
        self.x, self.y, self.heading = x, y, heading  # metres and radians (not wrapped)
        self.u = self.v = self.r = 0.0  # through the water, m/s and rad/s
        self.left = self.right = 0.0  # present thrusts, N

    def set_ground_velocity(self, vx: float, vy: float, current: Velocity) -> None:
        """Give the vessel a velocity over ground in a current."""
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        across, along = vx - current[0], vy - current[1]
        self.u = cos * across + sin * along
        self.v = -sin * across + cos * along

    def step(
        self, left: float, right: float, current: Velocity, wind: Velocity, seconds: float
    ) -> None:
        """Semi-implicit Euler over a few milliseconds: velocities first, positions with the new.

        Commanded thrusts are saturated here, N; the wind is over ground.
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
        force_u = self.left + self.right + hull.wind[0] * speed * ahead + mass_v * v * r
        force_v = hull.wind[1] * speed * across - mass_u * u * r
        moment = hull.arm * (self.right - self.left) + (mass_u - mass_v) * u * v
        u += seconds * (force_u - drag(hull.surge, u)) / mass_u
        v += seconds * (force_v - drag(hull.sway, v)) / mass_v
        r += seconds * (moment - drag(hull.yaw, r)) / hull.inertia_yaw
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
        self.current = _wandering(generator, 0.25, (60.0, 180.0))
        self.wind = _wandering(generator, 5.0, (10.0, 40.0))


def _wandering(
    generator: np.random.Generator, largest: float, periods: tuple[float, float]
) -> Callable[[float], Velocity]:
    """A vector of at most ``largest`` plus two sinusoids of random period and direction."""
    strength, towards = generator.uniform(0.0, largest), generator.uniform(0.0, 2.0 * math.pi)
    waves: list[tuple[float, float, float, float]] = []
    for _ in range(2):
        turn, phase = generator.uniform(0.0, 2.0 * math.pi, 2)
        pace, size = 2.0 * math.pi / generator.uniform(*periods), strength / 6.0
        waves.append((pace, phase, size * math.cos(turn), size * math.sin(turn)))

    def at(time: float) -> Velocity:
        x, y = strength * math.cos(towards), strength * math.sin(towards)
        for pace, phase, across, along in waves:
            wave = math.sin(pace * time + phase)
            x += across * wave
            y += along * wave
        return x, y

    return at


def thrusts(hull: Hull, force: float, moment: float) -> tuple[float, float]:
    """Left and right thrust of a force and a moment; turning has priority where both do not fit."""
    reach = 0.5 * (hull.thrust_high - hull.thrust_low)
    difference = min(max(0.5 * moment / hull.arm, -reach), reach)
    room = abs(difference)
    mean = min(max(0.5 * force, hull.thrust_low + room), hull.thrust_high - room)
    return mean - difference, mean + difference


def wrap(angle: Angle) -> Angle:
    """The same angle, or angles, in [-pi, pi)."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def over_ground(heading: float, u: float, v: float, current: Velocity) -> Velocity:
    """A velocity through the water, over ground, m/s."""
    cos, sin = math.cos(heading), math.sin(heading)
    return cos * u - sin * v + current[0], sin * u + cos * v + current[1]
