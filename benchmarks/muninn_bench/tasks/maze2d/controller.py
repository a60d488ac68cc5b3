"""A waypoint controller for the maze: a smooth reference through cell centres, tracked by PD.

The reference goes through the centres of a route's cells. It is rounded in space (so that the ball
stays near the middle of the corridor and turns without stopping), timed under limits on speed and
acceleration, and rounded in time (so that forces are continuous).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.maze2d.maze import Cell, MazeProblem, cell_centre
from muninn_bench.tasks.paths import gaussian, resample, smooth, timed

TIME_STEP = 0.01  # seconds per environment step
BALL_MASS = 4.0 / 3.0 * np.pi * 0.1**3 * 1000.0  # kg: a sphere of radius 0.1 m, 1000 kg/m^3
ACTUATOR_GEAR = 100.0  # newtons per unit of action
JOINT_DAMPING = 1.0  # newton seconds per metre
_ARC_STEP = 0.01


@dataclass(frozen=True)
class ControllerConfig:
    """Limits and gains of the waypoint controller.

    Attributes:
        top_speed: Largest reference speed, metres per second.
        turning_acceleration: Largest sideways acceleration of the reference, m/s^2.
        driving_acceleration: Largest acceleration along the path, m/s^2.
        corner_rounding: Standard deviation of the spatial smoothing, metres.
        time_rounding: Standard deviation of the smoothing in time, seconds.
        position_gain: PD stiffness, 1/s^2.
        velocity_gain: PD damping, 1/s.
        noise: Standard deviation of the smooth noise on the action.
        noise_time: Standard deviation of the noise's smoothing in time, seconds.
    """

    top_speed: float = 4.0
    turning_acceleration: float = 12.0
    driving_acceleration: float = 9.0
    corner_rounding: float = 0.35
    time_rounding: float = 0.07
    position_gain: float = 100.0
    velocity_gain: float = 20.0
    noise: float = 0.05
    noise_time: float = 0.1


@dataclass(frozen=True)
class Reference:
    """A timed path at the environment's step, (steps, 2) each: metres and seconds."""

    position: FloatArray
    velocity: FloatArray
    acceleration: FloatArray


def make_reference(problem: MazeProblem, route: list[Cell], config: ControllerConfig) -> Reference:
    """The timed reference from the problem's start, at rest, to its goal, at rest."""
    inner = [cell_centre(cell) for cell in route[1:-1]]
    corners = np.stack([problem.start[:2], *inner, problem.goal])
    path = smooth(resample(corners, _ARC_STEP), config.corner_rounding / _ARC_STEP)
    position = timed(
        resample(path, _ARC_STEP),
        config.top_speed,
        config.turning_acceleration,
        config.driving_acceleration,
        TIME_STEP,
        config.time_rounding,
    )
    velocity = np.gradient(position, TIME_STEP, axis=0)
    return Reference(position, velocity, np.gradient(velocity, TIME_STEP, axis=0))


def tracking_action(
    position: FloatArray,
    velocity: FloatArray,
    target_position: FloatArray,
    target_velocity: FloatArray,
    target_acceleration: FloatArray,
    config: ControllerConfig,
) -> FloatArray:
    """Return the action in ``[-1, 1]`` that tracks a target: PD plus the model's feed-forward.

    All arguments have shape ``(..., 2)``; units are metres and seconds.
    """
    wanted = (
        target_acceleration
        + config.position_gain * (target_position - position)
        + config.velocity_gain * (target_velocity - velocity)
    )
    force = BALL_MASS * wanted + JOINT_DAMPING * target_velocity
    action: FloatArray = np.clip(force / ACTUATOR_GEAR, -1.0, 1.0)
    return action


def smooth_noise(
    steps: int, config: ControllerConfig, generator: np.random.Generator
) -> FloatArray:
    """Return smooth stationary noise for the action, shape ``(steps, 2)``."""
    weights = gaussian(config.noise_time / TIME_STEP)
    weights *= config.noise / np.linalg.norm(weights)
    white = generator.standard_normal((steps + len(weights) - 1, 2))
    return np.stack([np.convolve(white[:, axis], weights, "valid") for axis in range(2)], axis=1)
