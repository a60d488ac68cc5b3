"""The Crazyflie as a platform, and its flights: physics at 500 Hz, setpoints at 100 Hz."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.model.schedule import FloatArray
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher, load_teacher
from muninn_bench.planners.diffuser import diffuser_planner
from muninn_bench.platform import Outcome, Snapshot
from muninn_bench.tasks.crazyflie import arena
from muninn_bench.tasks.crazyflie.controller import GeometricController, PlanSpline, Reference
from muninn_bench.tasks.crazyflie.model import PHYSICS_STEP, Air, Drone, Wind

GOAL_RADIUS, GOAL_SECONDS, TIMEOUT = 0.15, 1.0, 30.0
POSITION_NOISE, VELOCITY_NOISE = 0.001, 0.02
"""Standard deviations of motion capture along each axis, metres and m/s. Attitude and angular
velocity come from the drone's own estimator and are taken as exact."""

LOST = 0.25
"""Metres between drone and setpoint from which on the setpoint starts again at the drone."""

_STEPS_PER_SETPOINT = 5
_SETPOINT_SECONDS = _STEPS_PER_SETPOINT * PHYSICS_STEP


class CrazyflieEpisode:
    """A flight from a start to a goal among obstacles, in wind.

    Start and goal, wind, and sensor noise are drawn from the seed, each from a stream of its own at
    fixed times: what the planner does changes none of them. Clearances are those of the drone's
    centre from obstacles inflated by its radius, so a collision is a clearance below zero.

    Contexts and plans are in the teacher's coordinates; a given problem replaces the drawn one.
    """

    def __init__(
        self,
        teacher: Teacher,
        seed: int,
        wind: Wind | None = None,
        problem: arena.Problem | None = None,
    ) -> None:
        places, gusts, sensors = (
            np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(3)
        )
        problem = problem or arena.draw_problem(places)
        self.time = 0.0
        self.outcome: Outcome | None = None
        self.goal = problem.goal
        self.smallest_clearance = float(arena.clearance(problem.start)) - arena.COLLISION_MARGIN
        self._teacher = teacher
        self._drone = Drone(problem.start)
        self._air = Air(wind or Wind(), _SETPOINT_SECONDS, gusts)
        self._sensors = sensors
        self._controller = GeometricController()
        self._reference = Reference(problem.start)
        self._steps = self._inside_goal = 0
        self._blowing = np.zeros(3)
        self._sense()

    def context(self) -> Tensor:
        """The setpoint, and the goal at rest, in the planner's units: (1, 2, 6).

        Plans go on from the setpoint, not from the drone: the controller is there to bring the
        drone to it. Plans from where the wind has pushed it would give in to every push, ten
        times a second, and so drift into whatever they pass. The velocity is the plan's own, not
        the damped one: a plan from a slower state would be slower itself, and be damped again.
        """
        start = np.concatenate([self._reference.position, self._reference.planned_velocity])
        ends = np.stack([start, np.concatenate([self.goal, np.zeros(3)])])
        return self._teacher.normalise(torch.tensor(ends, dtype=torch.float32))[None]

    def follow(self, plan: Tensor, taken: float, factor: float = 1.0) -> None:
        """Track a plan (horizon, 6), joined where it would have been by now, or where it leaves."""
        frames = self._teacher.unnormalise(plan).double().cpu().numpy()
        spline = PlanSpline(frames, self._teacher.frame_seconds)
        self._reference.follow(spline, max(self.time - taken, spline.leaves()), factor)

    def hold(self) -> None:
        """Hover where the drone is; one that hovers already goes on where it does."""
        if not self._reference.holding:
            self._reference.hold(self._sensed_position)

    def advance(self, seconds: float) -> None:
        """Simulate; physics is never more than half a step of 2 ms off the clock."""
        until = self.time + seconds
        while self.outcome is None and (self._steps + 0.5) * PHYSICS_STEP <= until:
            self._step()
        self.time = until if self.outcome is None else self._steps * PHYSICS_STEP

    def snapshot(self) -> Snapshot:
        """The present moment, as it really is."""
        position = self._drone.position
        room = float(arena.clearance(position)) - arena.COLLISION_MARGIN
        return Snapshot(self.time, position, room, float(np.linalg.norm(position - self.goal)))

    def _step(self) -> None:
        drone, controller = self._drone, self._controller
        rotation = drone.rotation
        if self._steps % _STEPS_PER_SETPOINT == 0:
            self._blowing = self._air.next()
            off = self._sensed_position - self._reference.position
            if float(np.linalg.norm(off)) > LOST:
                self._reference.restart(self._sensed_position, self._sensed_velocity)
            setpoint = self._reference.next(_SETPOINT_SECONDS)
            controller.command(
                setpoint, self._sensed_position, self._sensed_velocity, rotation, _SETPOINT_SECONDS
            )
        drone.step(controller.motors(rotation, drone.rates), self._blowing)
        self._steps += 1
        if self._steps % _STEPS_PER_SETPOINT == 0:
            self._sense()
            self._judge(drone.position)

    def _sense(self) -> None:
        noise = self._sensors.standard_normal((2, 3))
        self._sensed_position: FloatArray = self._drone.position + POSITION_NOISE * noise[0]
        self._sensed_velocity: FloatArray = self._drone.velocity + VELOCITY_NOISE * noise[1]

    def _judge(self, position: FloatArray) -> None:
        room = float(arena.clearance(position)) - arena.COLLISION_MARGIN
        self.smallest_clearance = min(self.smallest_clearance, room)
        near = float(np.linalg.norm(position - self.goal)) <= GOAL_RADIUS
        self._inside_goal = self._inside_goal + 1 if near else 0
        if not room >= 0.0:
            self.outcome = "collision"
        elif (self._inside_goal - 1) * _SETPOINT_SECONDS >= GOAL_SECONDS:
            self.outcome = "success"
        elif self._steps * PHYSICS_STEP >= TIMEOUT:
            self.outcome = "timeout"


class Crazyflie:
    """3-D navigation of a micro-quadrotor in simulation, replanned at 10 Hz.

    Raises:
        InputError: no teacher is given, and the bundled one is missing.
    """

    name = "crazyflie"
    period = 0.1
    candidates = 3
    tolerance = 0.05

    def __init__(self, teacher: Teacher | None = None) -> None:
        self.teacher = teacher or load_teacher(model_file("crazyflie/teacher.safetensors"))
        self.planner = diffuser_planner(self.teacher)

    def begin(self, seed: int) -> CrazyflieEpisode:
        """A fresh flight; everything random in it is drawn from the seed."""
        return CrazyflieEpisode(self.teacher, seed)

    def screen(self, plan: Tensor, context: Context) -> bool:
        """Is the plan finite, and its whole spline out of the inflated obstacles?"""
        if not bool(torch.isfinite(plan).all()):
            return False
        frames = self.teacher.unnormalise(plan).double().cpu().numpy()
        spline = PlanSpline(frames, self.teacher.frame_seconds)
        return bool(arena.clearance(spline.sampled()).min() >= arena.COLLISION_MARGIN)

    def path(self, plan: Tensor) -> FloatArray:
        """Planned positions, metres, (horizon, 3)."""
        return np.asarray(self.teacher.unnormalise(plan)[..., :3].double().cpu().numpy())

    def outlines(self) -> list[FloatArray]:
        """Edges of the arena and its obstacles, each (points, 3), for pictures."""
        return arena.outlines()
