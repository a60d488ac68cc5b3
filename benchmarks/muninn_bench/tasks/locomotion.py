"""Running robots of gymnasium's MuJoCo suite, and data of agents that run them half well.

D4RL's "medium" data is not to be had here. Agents of others, with noise, are mixed so that the
mean score of their episodes is near that of D4RL's; the tasks' cards give the distribution.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from muninn.model.schedule import FloatArray
from muninn_bench.planners.decision_diffuser import DecisionDiffuser
from muninn_bench.planners.decision_diffuser_lesson import DecisionLesson
from muninn_bench.planners.diffusion_ql import DiffusionQL
from muninn_bench.planners.diffusion_ql_lesson import DiffusionQLLesson
from muninn_bench.planners.guided_diffuser import AdaptDiffuser, GuidedDiffuser
from muninn_bench.planners.guided_diffuser_lesson import AdaptLesson, GuidedLesson
from muninn_bench.tasks.agents import ORIGINAL, WalkingAgent, read_agent
from muninn_bench.tasks.control import ControlTask, Scoring, Taught
from muninn_bench.tasks.recorded import Recording

LIMIT = 1000
"""Steps of an episode that nothing else ends, the environments' own."""


@dataclass(frozen=True)
class Performer:
    """An agent in the mixture.

    Attributes:
        agent: its name in the file.
        share: of the episodes.
        own_noise: whether it explores as it did in training.
        noise: standard deviation of what is added to its actions.
    """

    agent: str
    share: float
    own_noise: bool = True
    noise: float = 0.0


class Runner:
    """A robot of gymnasium's; see :class:`muninn_bench.tasks.control.World`."""

    def __init__(self, environment: str) -> None:
        import gymnasium

        with warnings.catch_warnings():
            # gymnasium advises the next version; D4RL's scores belong to this one.
            warnings.simplefilter("ignore")
            self._environment: Any = gymnasium.make(environment, disable_env_checker=True)

    def reset(self, seed: int) -> FloatArray:
        """A start near the robot's rest."""
        observation: FloatArray = self._environment.reset(seed=seed)[0]
        return observation

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool]:
        """The robot falls, or the clock ends the episode."""
        observation, reward, fell, late, _ = self._environment.step(action)
        return observation, float(reward), bool(fell or late)


@dataclass(frozen=True)
class Gait:
    """How the data of a robot is made: ``make(source, seed, index)`` records an episode."""

    environment: str
    performers: tuple[Performer, ...]

    def make(self, source: Path, seed: int, index: int) -> list[FloatArray]:
        """Episode ``index``: observation, action and reward a frame, (steps, channels)."""
        generator = np.random.default_rng([seed, index])
        shares = [performer.share for performer in self.performers]
        performer = self.performers[generator.choice(len(shares), p=shares)]
        agent = _agent(source, performer.agent)
        world = _runner(self.environment)
        observation, ended = world.reset(int(generator.integers(2**31))), False
        frames: list[FloatArray] = []
        while not ended:
            action = perform(performer, agent, observation, len(frames), generator)
            after, reward, ended = world.step(action)
            frames.append(np.concatenate([observation, action, [reward]]))
            observation = after
        return [np.array(frames)]


def perform(
    performer: Performer,
    agent: WalkingAgent,
    observation: FloatArray,
    step: int,
    generator: np.random.Generator,
) -> FloatArray:
    """What a performer does, (action,), within [-1, 1]."""
    size = len(agent.tensors["mean.weight"])
    own = generator.standard_normal(size) if performer.own_noise else None
    action = agent.act(observation, step, own)
    if performer.noise:
        action = action + performer.noise * generator.standard_normal(size)
    return np.clip(action, -1.0, 1.0)


@cache
def _agent(source: Path, name: str) -> WalkingAgent:
    return read_agent(source, name)


@cache
def _runner(environment: str) -> Runner:
    """This process's simulator."""
    return Runner(environment)


SETTINGS: Mapping[str, Any] = {
    "minutes": 5.5, "steps": 16_000, "batch": 1024, "learning_rate": 5e-4, "averaging": 0.999,
}  # fmt: skip
"""Of the U-Nets: 16M windows. The time ends a training on a GPU that is shared."""

CRITIC_SETTINGS: Mapping[str, Any] = {
    "minutes": 5.5, "steps": 120_000, "batch": 2048, "learning_rate": 3e-4, "averaging": 0.995,
    "weight_decay": 0.0, "betas": (0.9, 0.999), "fast": False,
}  # fmt: skip
"""Of Diffusion-QL. The average is its target network, whose rate is the original's .005; values are
not to be rounded to the eight bits of the fast way."""


def _recording(
    name: str, gait: Gait, episodes: int, frame_seconds: float, observation: int, source: Path
) -> Recording:
    positions = (observation - 1) // 2  # a velocity more, that of the way along the ground
    make = partial(gait.make, source)
    return Recording(name, make, episodes, frame_seconds, positions, observation, shard=20)


def locomotion(
    name: str,
    gait: Gait,
    observation: int,
    action: int,
    scoring: Scoring,
    episodes: int,
    frame_seconds: float,
    *,
    ql_steps: int = 10,
) -> ControlTask:
    """A running robot with four planners; ``episodes`` are what the data holds, 1M steps."""
    sizes = (observation, action)
    taught = {
        "diffuser": Taught(GuidedDiffuser(*sizes), GuidedLesson, SETTINGS),
        "decision-diffuser": Taught(DecisionDiffuser(*sizes), DecisionLesson, SETTINGS),
        "adaptdiffuser": Taught(AdaptDiffuser(*sizes), AdaptLesson, SETTINGS),
        "diffusion-ql": Taught(
            replace(DiffusionQL(*sizes), steps=ql_steps), DiffusionQLLesson, CRITIC_SETTINGS
        ),
    }
    return ControlTask(
        name,
        partial(Runner, gait.environment),
        scoring,
        LIMIT,
        frame_seconds,
        partial(_recording, name, gait, episodes, frame_seconds, observation),
        f"that of the agents at {ORIGINAL}",
        taught,
    )
