"""The stationary deployment of the bundled Maze2D planner, and five ways in which it may change."""

from __future__ import annotations

from dataclasses import dataclass

from muninn_bench.tasks.maze2d.maze import START_JITTER, Cell


@dataclass(frozen=True)
class Scenario:
    """One deployment. Each episode plans, drives 1.9 s of its plan, and plans again from there.

    Attributes:
        name: for tables.
        changes: what differs from the stationary deployment, in words.
        jitter: largest offset of starts and goals from cell centres, metres.
        position_noise, velocity_noise: standard deviation of the state that the planner is told,
            metres and metres per second.
        wall: a free cell that is walled up in the world; the planner is not told.
        mass: of the ball, as a multiple; neither controller nor planner is told.
        half: the network runs under bfloat16 autocast, which loading does not check.
    """

    name: str
    changes: str
    jitter: float = START_JITTER
    position_noise: float = 0.0
    velocity_noise: float = 0.0
    wall: Cell | None = None
    mass: float = 1.0
    half: bool = False


STATIONARY = Scenario("stationary", "nothing")

SHIFTS: tuple[Scenario, ...] = (
    Scenario(
        "new goals",
        "starts and goals up to 0.45 m from the cell's centre instead of 0.25 m, next to walls "
        "and outside of the training data",
        jitter=0.45,
    ),
    Scenario(
        "sensor noise",
        "Gaussian noise of 0.1 m and 0.5 m/s on the start state that the planner is told",
        position_noise=0.1,
        velocity_noise=0.5,
    ),
    Scenario(
        "other obstacles",
        "the busiest corridor cell is walled up; the planner sees no obstacles, so only states "
        "from which the robot plans again can change",
        wall=(4, 6),
    ),
    Scenario(
        "other dynamics",
        "a ball four times as heavy; the planner's input changes only through the states from "
        "which the robot plans again",
        mass=4.0,
    ),
    Scenario("other dtype", "the network under bfloat16 autocast", half=True),
)
