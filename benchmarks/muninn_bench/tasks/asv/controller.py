"""What the vessel follows, and how: a plan on the clock or a stop along it; linear MPC with OSQP.

The MPC has eight waypoints over two seconds, its inputs within the thrust envelope. Each tick the
vessel is linearised along the headings that the last solution predicted, and one quadratic program
is solved, warm-started; its matrices keep their pattern and are updated in place. What it returns
is the velocity that it predicts for the first waypoint, through the water: the set points ``(v,
omega)`` of the thrust loop.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.asv.vessel import Hull, drag, thrusts, wrap
from muninn_bench.tasks.paths import fitted

HORIZON = 128
"""Frames of a plan: 128 s, longer than any route on this lake."""

FRAME_SECONDS = 1.0

SCREENED = 20.0
"""Seconds of a plan that are screened, from its first frame. What comes later is never run: a plan
is replaced within a few seconds, or the vessel brakes before."""

LONGEST_STOP = 15.0
"""Seconds in which a stop along a plan has ended, at up to 2.25 m/s; longer if it is damped."""

_BRAKING = 0.5
"""Deceleration of a stop straight ahead, m/s^2: what reverse thrust and drag manage at cruise."""

_SLOWING = 0.15
"""Deceleration of a stop along a plan, m/s^2. That water is free, so there is no hurry; and where
every other plan fails the screen, a vessel that stopped at each would never get away."""

WAYPOINTS = 8
STEP = 0.25
"""Seconds between waypoints: eight of them are the horizon of 2 s."""

_UNIT = 50.0
"""Thrusts in the program are in units of 50 N, so that its entries are of one size."""

_POSITION, _HEADING, _SURGE, _YAW, _THRUST = 2.0, 3.0, 0.5, 1.0, 0.05
_PULL = 0.3
"""Metres per second of wanted speed per metre of position error."""

_STATES = 5
_SLOW, _STILL = 0.4, 0.2
"""Speeds, m/s, below which a vessel may go astern, and below which it keeps its heading: one that
turned towards every small error would circle round the place that it holds."""

_SHIFT = 0.2
"""A tick as a share of a step: how far the last solution moves on."""

_SETTLE = 0.35


def followed(frames: FloatArray) -> FloatArray:
    """The frames of a plan, world units, (frames, 4), at the places that it is followed through."""
    places = fitted(frames[:, :2], frames[:, 2:], FRAME_SECONDS)
    return np.concatenate([places, frames[:, 2:]], axis=1)


class PlanReference:
    """A plan as a cubic Hermite curve through its frames; its last frame is held for ever.

    Velocities are the curve's own derivative: a planner's velocity channels are learned, and agree
    with its positions only roughly. Frames are in world units, (frames, 4); ``begin`` is the
    episode's time at the first, ``joined`` that from which on it is followed, seconds; ``factor``
    is the share of its own speed at which it is followed.
    """

    def __init__(
        self, frames: FloatArray, begin: float, joined: float = 0.0, factor: float = 1.0
    ) -> None:
        self._begin, self._joined, self.factor = begin, joined, factor
        clock = FRAME_SECONDS * np.arange(len(frames))
        self._end = clock[-1]
        self._position = CubicHermiteSpline(clock, frames[:, :2], frames[:, 2:4])
        self._velocity = self._position.derivative()

    def at(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Positions and velocities over ground at the times (n,), each (n, 2)."""
        along = self._joined - self._begin + self.factor * (times - self._joined)
        along = np.clip(along, 0.0, self._end)
        velocity = self.factor * self._velocity(along)
        velocity[along >= self._end] = 0.0
        return self._position(along), velocity


class Stop:
    """Brakes along a plan and stays where that ends.

    A vessel in a bend that braked straight ahead would leave the water that its plan was screened
    for, towards what the plan goes round. A plan followed at a share of its speed ends in the same
    place: its stop is slower too, or a damped vessel would lose in one stop what it gains in many
    calls.
    """

    def __init__(self, plan: PlanReference, begin: float, slowing: float = _SLOWING) -> None:
        self._plan, self._begin = plan, begin
        self.factor = plan.factor
        planned = float(np.linalg.norm(plan.at(np.array([begin]))[1])) / self.factor
        self._seconds = min(max(planned / slowing, 1e-6), LONGEST_STOP) / self.factor

    def at(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        gone = np.minimum(np.maximum(times - self._begin, 0.0), self._seconds)
        left = 1.0 - gone / self._seconds
        position, velocity = self._plan.at(self._begin + gone * (1.0 + left) / 2.0)
        return position, velocity * left[:, None]


Reference = PlanReference | Stop
"""Where to be, and how fast, at times of the episode."""


def stop_ahead(position: FloatArray, velocity: FloatArray, begin: float) -> Stop:
    """A stop along a velocity over ground, (2,) each; never damped."""
    seconds = FRAME_SECONDS * np.arange(LONGEST_STOP / FRAME_SECONDS)[:, None]
    ahead = np.concatenate([position + velocity * seconds, velocity + 0.0 * seconds], axis=1)
    return Stop(PlanReference(ahead, begin, begin), begin, _BRAKING)


def require_osqp() -> Any:
    """The solver's module; imported late, so that training and data need none.

    Raises:
        InputError: it is not installed.
    """
    try:
        import osqp
    except ImportError as error:
        raise InputError("the vessel needs OSQP: pip install 'muninn-bench[fly]'") from error
    return osqp


class Mpc:
    """The controller of one episode: keeps its last solution."""

    def __init__(self, hull: Hull) -> None:
        from scipy import sparse

        osqp = require_osqp()
        self._hull = hull
        count, inputs = WAYPOINTS, 2 * WAYPOINTS
        self._size = _STATES * count + inputs
        matrix = _constraints(hull)
        self._changing_places = _changing(matrix)
        weights = np.array([_POSITION, _POSITION, _HEADING, _SURGE, _YAW])
        self._weights = np.concatenate([np.tile(weights, count), np.full(inputs, _THRUST)])
        self._low, self._high = np.zeros(self._size), np.zeros(self._size)
        self._low[_STATES * count :] = hull.thrust_low / _UNIT
        self._high[_STATES * count :] = hull.thrust_high / _UNIT
        self._wanted = np.zeros(self._size)
        self._times = np.linspace(STEP, count * STEP, count)
        self._solution: FloatArray | None = None
        self._program: Any = osqp.OSQP()
        # A fixed step size: the adaptive one depends on the clock, and episodes must repeat.
        self._program.setup(
            sparse.diags(self._weights, format="csc"), np.zeros(self._size), matrix,
            self._low, self._high, verbose=False, warm_starting=True, adaptive_rho=False, rho=0.2,
            eps_abs=1e-3, eps_rel=1e-3, max_iter=400, check_termination=10, polishing=False,
        )  # fmt: skip

    def solve(self, now: float, state: FloatArray, reference: Reference) -> tuple[float, float]:
        """The set points ``(v, omega)``: surge through the water, m/s, and turn rate, rad/s.

        ``now`` is the episode's time, ``state`` the filter's mean, (8,).
        """
        hull, count = self._hull, WAYPOINTS
        x, y, heading, u, _, r, cx, cy = state.tolist()
        drift = np.array([cx, cy])  # sway comes and goes with turns: kept, the heading would swing
        if self._solution is None:
            self._solution = np.tile((0.0, 0.0, heading, u, r), (count, 1))
        nominal, surges, rates = self._solution[:, 2], self._solution[:, 3], self._solution[:, 4]
        position, velocity = reference.at(now + self._times)
        # From here: the solver's relative tolerance should not grow with the distance to (0, 0).
        position = position - (x, y)
        wanted = velocity - drift
        course, astern = _course(position[0], wanted, nominal)
        cosines, sines = np.cos(nominal), np.sin(nominal)
        speed = wanted[:, 0] * cosines + wanted[:, 1] * sines
        speed = np.minimum(speed, 0.0) if astern else np.maximum(speed, 0.0)

        # (x, y, heading, u, r) of each waypoint from the one before, implicitly in the velocities.
        drag_u, drag_r = hull.surge, hull.yaw
        slope_u = drag_u[0] + 2.0 * drag_u[1] * np.abs(surges)
        slope_r = drag_r[0] + 2.0 * drag_r[1] * np.abs(rates)
        entries = [-STEP * cosines, STEP * surges * sines, -STEP * sines, -STEP * surges * cosines]
        entries += [1.0 + STEP / hull.mass_surge * slope_u, 1.0 + STEP / hull.inertia_yaw * slope_r]
        fixed = np.empty((count, _STATES))
        fixed[:, 0] = STEP * (drift[0] + surges * sines * nominal)
        fixed[:, 1] = STEP * (drift[1] - surges * cosines * nominal)
        fixed[:, 2] = 0.0
        fixed[:, 3] = STEP / hull.mass_surge * drag_u[1] * surges * np.abs(surges)
        fixed[:, 4] = STEP / hull.inertia_yaw * drag_r[1] * rates * np.abs(rates)
        fixed[0] += (0.0, 0.0, heading, u, r)
        equations = _STATES * count
        self._low[:equations] = self._high[:equations] = fixed.ravel()
        target = self._wanted[:equations].reshape(count, _STATES)
        target[:, :2], target[:, 2], target[:, 3] = position, course, speed
        trim = 0.5 * (drag_u[0] + drag_u[1] * np.abs(speed)) * speed / _UNIT
        self._wanted[equations:] = np.repeat(trim, 2)
        self._program.update(
            q=-self._weights * self._wanted, l=self._low, u=self._high,
            Ax=np.concatenate(entries), Ax_idx=self._changing_places,
        )  # fmt: skip
        result = self._program.solve(raise_error=False)
        states: FloatArray = result.x[:equations].reshape(count, _STATES)
        ahead = states + _SHIFT * np.diff(states, axis=0, append=2.0 * states[-1:] - states[-2:-1])
        self._solution = ahead if np.isfinite(ahead).all() else None
        if self._solution is None:
            return 0.0, 0.0
        return float(states[0, 3]), float(states[0, 4])


def _course(error: FloatArray, wanted: FloatArray, nominal: FloatArray) -> tuple[FloatArray, bool]:
    """Headings to aim for at the waypoints, and whether to go astern.

    The bow points along the velocity through the water that the reference asks for, corrected
    towards it; so the vessel crabs in a current, and turns into it when it holds. A slow correction
    behind the vessel is made astern; for one that is slower still the heading is kept. ``error`` is
    from here to the first waypoint, ``wanted`` are velocities through the water, (waypoints, 2).
    """
    pull = _PULL * error
    pull *= min(1.0, 0.6 / max(math.hypot(pull[0], pull[1]), 1e-9))
    aim = wanted + pull
    speeds = np.sqrt(aim[:, 0] ** 2 + aim[:, 1] ** 2)
    if speeds[-1] < _STILL:
        return np.full(WAYPOINTS, nominal[0]), False
    last = float(nominal[-1])
    aim[speeds < _STILL] = aim[-1]
    angles = np.unwrap(np.arctan2(aim[:, 1], aim[:, 0]))
    off = wrap(float(angles[-1]) - last)
    astern = bool(speeds[-1] < _SLOW) and abs(off) > 0.5 * math.pi
    if astern:
        off = wrap(off + math.pi)
    return angles + (last + off - angles[-1]), astern


def _constraints(hull: Hull) -> Any:
    """The constraints with their first values: dynamics of waypoints, then bounds on thrusts."""
    from scipy import sparse

    own, inputs = np.eye(_STATES), np.zeros((_STATES, 2))  # of x, y, heading, u, r
    own[[0, 0, 1, 1], [3, 2, 3, 2]] = 1.0  # change every tick
    own[2, 4] = -STEP
    inputs[3] = -STEP * _UNIT / hull.mass_surge
    inputs[4] = STEP * _UNIT * hull.arm / hull.inertia_yaw * np.array([1.0, -1.0])
    each = sparse.eye(WAYPOINTS)
    before = sparse.kron(sparse.eye(WAYPOINTS, k=-1), sparse.eye(_STATES), "csc")
    dynamics = [sparse.kron(each, own, "csc") - before, sparse.kron(each, inputs, "csc")]
    matrix = sparse.bmat([dynamics, [None, sparse.eye(2 * WAYPOINTS)]], format="csc")
    matrix.sort_indices()
    return matrix


def _changing(matrix: Any) -> FloatArray:
    """Places in the matrix's data of the entries that change every tick."""
    x, y, heading, u, r = (np.arange(WAYPOINTS) * _STATES + state for state in range(_STATES))
    rows = np.concatenate([x, x, y, y, u, r])
    columns = np.concatenate([u, heading, u, heading, u, r])
    numbered = matrix.copy()
    numbered.data = np.arange(matrix.nnz)
    return np.asarray(numbered[rows, columns]).ravel()


def thrust_loop(
    hull: Hull, setpoint: tuple[float, float], state: FloatArray
) -> tuple[float, float]:
    """Left and right thrust for set points ``(v, omega)``, saturated, N.

    Drag of the set point, its error over a third of a second, and the coupling through sway
    cancelled, so that surge and yaw are what the MPC takes them for.
    """
    u, v, r = state[3:6].tolist()
    speed, rate = setpoint
    mass_u, mass_v = hull.mass_surge, hull.mass_sway
    force = drag(hull.surge, speed) + mass_u * (speed - u) / _SETTLE - mass_v * v * r
    moment = drag(hull.yaw, rate) + hull.inertia_yaw * (rate - r) / _SETTLE
    return thrusts(hull, force, moment - (mass_u - mass_v) * u * v)
