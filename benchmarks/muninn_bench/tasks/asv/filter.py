"""Sensors on their own clocks, and the extended Kalman filter that joins them.

The state is ``(x, y, heading, u, v, r, cx, cy)``: pose, velocity through the water, current. It is
predicted with the hull's own model and the thrust that the propellers report; wind is not known to
it, and lands in the process noise and in the current. All sensors of one tick are joined into one
update, because they see only ``(x, y, heading, r)``: their information is a 4 x 4 matrix.

| sensor | rate | model |
|---|---|---|
| gyro | 200 Hz | 0.02 rad/s; ten samples are averaged per tick |
| camera (day) | 20 Hz | bearings of buoys within 80 m, 120 degrees ahead; 1 px = 2 cm at 10 m |
| LiDAR | 10 Hz | ranges (3 cm) and bearings (3.5 mrad, our figure) of buoys within 120 m |
| GNSS, RTK fix | 5 Hz | 1.5 cm |

The night camera and the sonde are not simulated (by day the first sees nothing more, and the second
says nothing of the pose); islands hide no buoy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.asv.vessel import Hull, Vessel, drag, over_ground, wrap

TICK = 0.05
"""Seconds between two updates of the filter, and of the controller: 20 Hz."""

GYRO_SAMPLES, GYRO_NOISE = 10, 0.02
GNSS_TICKS, GNSS_NOISE = 4, 0.015
LIDAR_TICKS, LIDAR_RANGE, LIDAR_NOISE, LIDAR_BEARING_NOISE = 2, 120.0, 0.03, 0.0035
CAMERA_RANGE, CAMERA_NOISE, CAMERA_FIELD = 80.0, 0.002, math.cos(math.radians(60.0))

_STATES = 8
_SEEN = [0, 1, 2, 5]
# Process noise per second: wind on the hull, what it does to the yaw, a wandering current.
_PROCESS = np.diag([1e-6, 1e-6, 1e-6, 3e-3, 4e-3, 2e-3, 1e-4, 1e-4])
_PRIOR = np.diag([0.05, 0.05, 0.02, 0.2, 0.2, 0.02, 0.2, 0.2]) ** 2


class Sensors:
    """Draws measurements of the true vessel at a tick, as information on its pose.

    Landmarks are the buoys' middles, (landmarks, 2), metres.
    """

    def __init__(self, landmarks: FloatArray, generator: np.random.Generator) -> None:
        self._landmarks, self._generator, self._count = landmarks, generator, len(landmarks)

    def read(
        self, tick: int, vessel: Vessel, mean_rate: float, belief: Filter
    ) -> tuple[FloatArray, FloatArray]:
        """The tick's information matrix (4, 4) and vector (4,) about ``(x, y, heading, r)``.

        The tick's number says which sensors report. ``mean_rate`` is the true turn rate, averaged
        over the gyro's samples. Measurements are linearised at what the filter expects.
        """
        expected = belief.mean
        information, vector = np.zeros((4, 4)), np.zeros(4)
        noise = self._generator.standard_normal(3 + 3 * self._count)
        weight = GYRO_SAMPLES / GYRO_NOISE**2
        rate = mean_rate + noise[0] / math.sqrt(weight)
        information[3, 3] = weight
        vector[3] = weight * (rate - belief.mean_rate)
        if tick % GNSS_TICKS == 0:
            weight = GNSS_NOISE**-2
            information[0, 0] = information[1, 1] = weight
            vector[0] = weight * (vessel.x + GNSS_NOISE * noise[1] - expected[0])
            vector[1] = weight * (vessel.y + GNSS_NOISE * noise[2] - expected[1])
        away = self._landmarks - (vessel.x, vessel.y)
        distance = np.sqrt(away[:, 0] ** 2 + away[:, 1] ** 2)
        bearing = np.arctan2(away[:, 1], away[:, 0]) - vessel.heading
        towards = self._landmarks - expected[:2]
        square = towards[:, 0] ** 2 + towards[:, 1] ** 2
        expected_bearing = np.arctan2(towards[:, 1], towards[:, 0]) - expected[2]
        error = bearing - expected_bearing
        slope = np.empty((self._count, 3))
        slope[:, 0] = towards[:, 1] / square
        slope[:, 1] = -towards[:, 0] / square
        slope[:, 2] = -1.0

        def add(error: FloatArray, seen: NDArray[np.bool_], spread: float) -> None:
            """Add the measurements that are seen, each with the same noise."""
            weighted = slope.T * (seen / spread**2)
            information[:3, :3] += weighted @ slope
            vector[:3] += weighted @ wrap(error)

        first = 3 + self._count
        seen = (distance < CAMERA_RANGE) & (np.cos(bearing) > CAMERA_FIELD)
        add(error + CAMERA_NOISE * noise[3:first], seen, CAMERA_NOISE)
        if tick % LIDAR_TICKS == 0:
            seen = distance < LIDAR_RANGE
            second = first + self._count
            error += LIDAR_BEARING_NOISE * noise[first:second]
            add(error, seen, LIDAR_BEARING_NOISE)
            expected_distance = np.sqrt(square)
            error = distance + LIDAR_NOISE * noise[second:] - expected_distance
            slope[:, :2] = -towards / expected_distance[:, None]
            slope[:, 2] = 0.0
            add(error, seen, LIDAR_NOISE)
        return information, vector


class Filter:
    """The extended Kalman filter: mean (8,) and covariance (8, 8) of the state."""

    def __init__(self, hull: Hull, mean: FloatArray) -> None:
        self._hull = hull
        self.mean = mean.copy()
        self.covariance = _PRIOR.copy()
        self.mean_rate = 0.0  # turn rate averaged over the last tick, as predicted, rad/s
        self._transition = np.eye(_STATES)
        self._noise = TICK * _PROCESS

    def position(self) -> FloatArray:
        """Of the mean, (2,)."""
        return np.array(self.mean[:2])

    def ground_velocity(self) -> FloatArray:
        """Of the mean, (2,): through the water plus current."""
        _, _, heading, u, v, _, cx, cy = self.mean.tolist()
        return np.array(over_ground(heading, u, v, (cx, cy)))

    def predict(self, left: float, right: float) -> None:
        """One tick ahead with the mean thrusts of it, N."""
        hull, step = self._hull, TICK
        x, y, heading, u, v, r, cx, cy = self.mean.tolist()
        cos, sin = math.cos(heading), math.sin(heading)
        mass_u, mass_v, inertia = hull.mass_surge, hull.mass_sway, hull.inertia_yaw
        force = left + right + mass_v * v * r
        moment = hull.arm * (right - left) + (mass_u - mass_v) * u * v
        next_u = u + step * (force - drag(hull.surge, u)) / mass_u
        next_v = v - step * (mass_u * u * r + drag(hull.sway, v)) / mass_v
        next_r = r + step * (moment - drag(hull.yaw, r)) / inertia
        u_mean, v_mean, self.mean_rate = (u + next_u) / 2.0, (v + next_v) / 2.0, (r + next_r) / 2.0
        self.mean[:] = (
            x + step * (cos * u_mean - sin * v_mean + cx),
            y + step * (sin * u_mean + cos * v_mean + cy),
            heading + step * self.mean_rate,
            next_u, next_v, next_r, cx, cy,
        )  # fmt: skip
        f = self._transition
        f[0, 2:5] = -step * (sin * u + cos * v), step * cos, -step * sin
        f[1, 2:5] = step * (cos * u - sin * v), step * sin, step * cos
        f[0, 6] = f[1, 7] = f[2, 5] = step
        f[3, 3] = 1.0 - step * (hull.surge[0] + 2.0 * hull.surge[1] * abs(u)) / mass_u
        f[3, 4:6] = step * mass_v * r / mass_u, step * mass_v * v / mass_u
        f[4, 3] = -step * mass_u * r / mass_v
        f[4, 4] = 1.0 - step * (hull.sway[0] + 2.0 * hull.sway[1] * abs(v)) / mass_v
        f[4, 5] = -step * mass_u * u / mass_v
        f[5, 3:5] = step * (mass_u - mass_v) * v / inertia, step * (mass_u - mass_v) * u / inertia
        f[5, 5] = 1.0 - step * (hull.yaw[0] + 2.0 * hull.yaw[1] * abs(r)) / inertia
        self.covariance = f @ self.covariance @ f.T + self._noise

    def update(self, information: FloatArray, vector: FloatArray) -> None:
        """Join a tick's information about ``(x, y, heading, r)``.

        ``P - P E (I + L E'PE)^-1 L E'P``: the Kalman update in a form that a singular information
        ``L``, as of a tick without position, does not trouble.
        """
        columns = self.covariance[:, _SEEN]
        inner = np.eye(4) + information @ columns[_SEEN]
        gain = np.linalg.solve(inner.T, columns.T).T
        self.mean += gain @ vector
        self.covariance -= gain @ information @ columns.T
        self.covariance = 0.5 * (self.covariance + self.covariance.T)
