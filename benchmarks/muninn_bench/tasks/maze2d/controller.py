"""A waypoint controller for the maze: a smooth reference through cell centres, tracked by PD.

The reference goes through the centres of a route's cells. It is rounded in space (so that the ball
stays near the middle of the corridor and turns without stopping), timed under limits on speed and
acceleration, and rounded in time (so that forces are continuous).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muninn.loop.escalation import damped
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.maze2d.maze import Cell, MazeProblem, cell_centre
from muninn_bench.tasks.paths import gaussian, resample, smooth, timed

TIME_STEP = 0.01  # seconds per environment step
BALL_MASS = 4.0 / 3.0 * np.pi * 0.1**3 * 1000.0  # kg: a sphere of radius 0.1 m, 1000 kg/m^3
ACTUATOR_GEAR = 100.0  # newtons per unit of action
JOINT_DAMPING = 1.0  # newton seconds per metre
TOP_SPEED = 4.0  # of the reference, metres per second
TURNING, DRIVING = 12.0, 9.0  # its largest acceleration across and along the path, m/s^2
CORNER_ROUNDING = 0.35  # standard deviation of the smoothing in space, metres
TIME_ROUNDING = 0.07  # and in time, seconds
POSITION_GAIN, VELOCITY_GAIN = 100.0, 20.0  # of the PD controller, 1/s^2 and 1/s
NOISE_TIME = 0.1  # standard deviation of the smoothing of noise in time, seconds
_ARC_STEP = 0.01


@dataclass(frozen=True)
class Reference:
    """A timed path at the environment's step, (steps, 2) each: metres and seconds."""

    position: FloatArray
    velocity: FloatArray
    acceleration: FloatArray


def make_reference(problem: MazeProblem, route: list[Cell]) -> Reference:
    """The timed reference from the problem's start, at rest, to its goal, at rest."""
    inner = [cell_centre(cell) for cell in route[1:-1]]
    corners = np.stack([problem.start[:2], *inner, problem.goal])
    path = smooth(resample(corners, _ARC_STEP), CORNER_ROUNDING / _ARC_STEP)
    even = resample(path, _ARC_STEP)
    position = timed(even, TOP_SPEED, TURNING, DRIVING, TIME_STEP, TIME_ROUNDING)
    velocity = np.gradient(position, TIME_STEP, axis=0)
    return Reference(position, velocity, np.gradient(velocity, TIME_STEP, axis=0))


def tracking_action(
    position: FloatArray,
    velocity: FloatArray,
    target: FloatArray,
    target_velocity: FloatArray,
    acceleration: FloatArray | float = 0.0,
    factor: float = 1.0,
) -> FloatArray:
    """The action in ``[-1, 1]`` that tracks a target: PD plus the model's feed-forward.

    Arrays are ``(..., 2)``, metres and seconds; ``factor`` damps before the action is saturated.
    """
    wanted = (
        acceleration
        + POSITION_GAIN * (target - position)
        + VELOCITY_GAIN * (target_velocity - velocity)
    )
    force = BALL_MASS * wanted + JOINT_DAMPING * target_velocity
    return damped(force / ACTUATOR_GEAR, factor, -1.0, 1.0)


def smooth_noise(steps: int, spread: float, generator: np.random.Generator) -> FloatArray:
    """Smooth stationary noise for the action, (steps, 2), of a standard deviation."""
    weights = gaussian(NOISE_TIME / TIME_STEP)
    weights *= spread / np.linalg.norm(weights)
    white = generator.standard_normal((steps + len(weights) - 1, 2))
    return np.stack([np.convolve(white[:, axis], weights, "valid") for axis in range(2)], axis=1)
