"""The vessel as a platform, and its runs on a clock: truth, sensors, filter, control, outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher, load_teacher
from muninn_bench.planners.diffuser import diffuser_planner
from muninn_bench.platform import Outcome, Snapshot
from muninn_bench.tasks.asv import controller
from muninn_bench.tasks.asv import lake as world
from muninn_bench.tasks.asv.filter import GYRO_SAMPLES, TICK, Filter, Sensors
from muninn_bench.tasks.asv.vessel import Hull, Vessel, Weather

TIMEOUT, GOAL_SECONDS, BUFFER_SECONDS = 180.0, 3.0, 1.0
SUBSTEP = TICK / GYRO_SAMPLES

LOST = 3.0
"""Metres between the vessel and where it should be from which on plans start at the vessel."""


class AsvEpisode:
    """An episode of one problem; begins at rest over ground, holding its position.

    Plans and contexts are in the teacher's coordinates; the generator is of the sensors' noise.
    Beyond those of :class:`muninn_bench.platform.Episode` there are ``vessel``, the truth, and
    ``filter``, what the vessel believes.
    """

    def __init__(
        self,
        lake: world.Lake,
        problem: world.Problem,
        weather: Weather,
        generator: np.random.Generator,
        teacher: Teacher,
    ) -> None:
        hull = Hull()
        self.time = 0.0
        self.outcome: Outcome | None = None
        self.goal = problem.goal
        self.vessel = Vessel(hull, problem.start[0], problem.start[1], problem.heading)
        self.vessel.set_ground_velocity(0.0, 0.0, weather.current(0.0))
        believed = np.zeros(8)
        believed[:3] = self.vessel.x, self.vessel.y, self.vessel.heading
        believed[:3] += generator.normal(0.0, (0.05, 0.05, 0.02))
        self.filter = Filter(hull, believed)
        self._lake, self._weather, self._teacher = lake, weather, teacher
        self._sensors = Sensors(lake.buoys, generator)
        self._mpc = controller.Mpc(hull)
        self._substeps, self._sums, self._command = 0, [0.0, 0.0, 0.0], (0.0, 0.0)
        self._holding, self._until = True, 0.0
        self._inside_goal = self._inside_buffer = 0
        self.smallest_clearance = math.inf
        self._reference: controller.Reference = controller.stop_ahead(
            self.filter.position(), self.filter.ground_velocity(), 0.0
        )
        self._judge()
        self._control()

    def context(self) -> Tensor:
        """Where the vessel should be and the goal at rest, normalised: (1, 2, 4).

        Plans go on from the reference, and control is there to bring the vessel to it: plans from
        where wind and current have pushed it would give in to every push. A vessel too far from
        its reference plans from the filter's mean. The velocity is the plan's own, not the damped
        one: a plan from a slower state would be slower itself, and be damped again.
        """
        place, velocity = (value[0] for value in self._reference.at(np.array([self.time])))
        velocity = velocity / self._reference.factor
        if self._is_lost():
            place, velocity = self.filter.position(), self.filter.ground_velocity()
        ends = [[*place, *velocity], [*self.goal, 0.0, 0.0]]
        return self._teacher.normalise(torch.tensor([ends], dtype=torch.float32))

    def follow(self, plan: Tensor, taken: float, factor: float = 1.0) -> None:
        """Track a plan, (horizon, 4), whose first frame was at simulated time ``taken``.

        From now on it is followed at ``factor`` of its speed, as far as plans are screened; then
        the vessel holds.

        Raises:
            InputError: the plan is not finite or has another shape, or comes from the future.
        """
        if plan.ndim != 2 or plan.shape[1] != 4 or not bool(torch.isfinite(plan).all()):
            shape = tuple(plan.shape)
            raise InputError(f"a plan is finite, of shape (horizon, 4), got {shape}; hold instead")
        if taken > self.time:
            raise InputError(
                f"the plan is of {taken} s, but it is {self.time} s; give its past time"
            )
        frames = self._teacher.unnormalise(plan.detach().cpu()).double().numpy()
        followed = controller.followed(frames)
        self._reference = controller.PlanReference(followed, taken, self.time, factor)
        self._holding = False
        # A stop runs through half as many seconds of the plan as it takes.
        self._until = taken + controller.SCREENED - 0.5 * controller.LONGEST_STOP

    def hold(self) -> None:
        """Stop and hold the position; holding on where it already holds.

        Brakes along the plan followed so far, which was screened, or straight ahead where there is
        none or the vessel is far from it.
        """
        if not self._holding:
            plan, belief = self._reference, self.filter
            if isinstance(plan, controller.PlanReference) and not self._is_lost():
                self._reference = controller.Stop(plan, self.time)
            else:
                self._reference = controller.stop_ahead(
                    belief.position(), belief.ground_velocity(), self.time
                )
        self._holding = True

    def _is_lost(self) -> bool:
        place, _ = self._reference.at(np.array([self.time]))
        return math.dist(place[0], self.filter.position()) > LOST

    def advance(self, seconds: float) -> None:
        """Simulate; the state is that of the last whole substep of 5 ms."""
        until = self.time + seconds
        while self.outcome is None and (self._substeps + 1) * SUBSTEP <= until + 1e-9:
            self._substep()
        if self.outcome is None:
            self.time = until

    def snapshot(self) -> Snapshot:
        """The present moment, of the true vessel."""
        place = np.array([self.vessel.x, self.vessel.y])
        clearance = float(self._lake.clearance(place))
        return Snapshot(self.time, place, clearance, math.dist(place, self.goal))

    def _substep(self) -> None:
        now = self._substeps * SUBSTEP
        vessel, sums = self.vessel, self._sums
        if self._substeps % GYRO_SAMPLES == 0:
            self._current, self._wind = self._weather.current(now), self._weather.wind(now)
        vessel.step(*self._command, self._current, self._wind, SUBSTEP)
        sums[0] += vessel.left
        sums[1] += vessel.right
        sums[2] += vessel.r
        self._substeps += 1
        self.time = self._substeps * SUBSTEP
        if self._substeps % GYRO_SAMPLES == 0:
            left, right, rate = (value / GYRO_SAMPLES for value in sums)
            sums[:] = 0.0, 0.0, 0.0
            belief, tick = self.filter, self._substeps // GYRO_SAMPLES
            belief.predict(left, right)
            belief.update(*self._sensors.read(tick, vessel, rate, belief))
            self._judge()
            if self.outcome is None:
                self._control()

    def _control(self) -> None:
        if not self._holding and self.time > self._until:
            self.hold()
        state = self.filter.mean
        setpoint = self._mpc.solve(self.time, state, self._reference)
        self._command = controller.thrust_loop(self.vessel.hull, setpoint, state)

    def _judge(self) -> None:
        """Success and shore by the filter's mean, contact by the true hull, as the paper has it."""
        places = np.array([[self.vessel.x, self.vessel.y], self.filter.mean[:2]])
        shore, obstacles = self._lake.to_shore(places), self._lake.to_obstacles(places[0])
        clearance = min(obstacles - world.HULL_RADIUS, shore[0] - world.SHORE_BUFFER)
        self.smallest_clearance = min(self.smallest_clearance, float(clearance))
        self._inside_buffer = self._inside_buffer + 1 if shore[1] < world.SHORE_BUFFER else 0
        near = math.dist(places[1], self.goal) <= world.GOAL_RADIUS
        self._inside_goal = self._inside_goal + 1 if near else 0
        if (
            obstacles < world.HULL_RADIUS
            or shore[1] < 0.0
            or (self._inside_buffer - 1) * TICK > BUFFER_SECONDS + 1e-9
        ):
            self.outcome = "collision"
        elif (self._inside_goal - 1) * TICK >= GOAL_SECONDS - 1e-9:
            self.outcome = "success"
        elif self.time >= TIMEOUT - 1e-9:
            self.outcome = "timeout"


SCREEN_MARGIN = 0.5
"""Metres beyond hull radius and shore buffer that a plan must keep: what tracking may be off."""


@dataclass
class AsvPlatform:
    """See :class:`muninn_bench.platform.Platform`."""

    teacher: Teacher = field(
        default_factory=lambda: load_teacher(model_file("asv/teacher.safetensors"))
    )
    lake: world.Lake = field(default_factory=world.make_lake)
    name: str = "asv"
    period: float = 1.0
    candidates: int = 4
    tolerance: float = 0.5

    def __post_init__(self) -> None:
        controller.require_osqp()  # a missing package is told now, not in the first episode
        self.planner = diffuser_planner(self.teacher)

    def begin(self, seed: int) -> AsvEpisode:
        """A fresh problem, weather and sensor noise."""
        generator = np.random.default_rng(seed)
        problem, weather = world.draw_problem(self.lake, generator), Weather(generator)
        return AsvEpisode(self.lake, problem, weather, generator, self.teacher)

    def screen(self, plan: Tensor, context: Context) -> bool:
        """No frame soon, nor the middle between two, is too close to land, buoys or the buffer.

        A vessel that is itself too close may leave: its plan must then lead no decimetre closer.
        """
        frames = self.teacher.unnormalise(plan.float()).double().numpy()
        soon = round(controller.SCREENED / controller.FRAME_SECONDS) + 1
        path = controller.followed(frames)[:soon, :2]
        middles = 0.5 * (path[1:] + path[:-1])
        clearance = self.lake.clearance(np.concatenate([path, middles]))
        return bool(clearance.min() >= min(SCREEN_MARGIN, float(clearance[0]) - 0.1))

    def path(self, plan: Tensor) -> FloatArray:
        """Positions in metres, (horizon, 2)."""
        return np.asarray(self.teacher.unnormalise(plan[:, :2].float()).double().numpy())

    def outlines(self) -> list[FloatArray]:
        """Closed outlines of shore, islands and buoys, each (points, 2), for pictures."""
        turn = np.linspace(0.0, 2.0 * np.pi, 17)
        circle = world.BUOY_RADIUS * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        rings = [*self.lake.shore.rings, *self.lake.islands.rings]
        lines = [np.concatenate([ring, ring[:1]]) for ring in rings]
        return lines + [centre + circle for centre in self.lake.buoys]
