"""Worlds that give rewards: their episodes, and the planners on them that learn from recordings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric
from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers
from muninn_bench.models import model_file
from muninn_bench.networks.agent import load_agent
from muninn_bench.networks.runs import load_runs, split_runs
from muninn_bench.networks.trainer import Lesson, Training
from muninn_bench.planners.policy import Policy, Recipe
from muninn_bench.task import Result, Stream
from muninn_bench.tasks.recorded import Recording


class World(Protocol):
    """A simulator that can be used for one episode after another."""

    def reset(self, seed: int) -> FloatArray:
        """Begin an episode: a function of the seed; the first observation."""

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool]:
        """The next observation, the reward, and whether the episode is over."""


@dataclass(frozen=True)
class Scoring:
    """What an episode's rewards are worth.

    Attributes:
        worst, best: sums of rewards that score 0 and 100, as D4RL's do.
        complete: sum of rewards that is a success; None where there is none.
    """

    worst: float
    best: float
    complete: float | None = None

    def score(self, total: float) -> float:
        """Normalised points: 0 is a random policy, 100 an expert."""
        return 100.0 * (total - self.worst) / (self.best - self.worst)


class ControlEpisode:
    """One run; see :class:`muninn_bench.task.Episode`."""

    def __init__(self, task: ControlTask, policy: Policy, seed: int) -> None:
        self._task, self.policy = task, policy
        self._world = task.idle.pop() if task.idle else task.simulator()
        self._observation = self._world.reset(seed)
        self._total, self._steps = 0.0, 0
        self.done, self.time = False, 0.0  # whether it fell or is out of time; seconds

    def context(self) -> Tensor:
        """The observation, normalised, (1, observation)."""
        return self.policy.context(self._observation)

    def follow(self, plan: Tensor) -> None:
        """Carry out the executed actions of a plan, until the episode is over."""
        self.take(self.policy.act(plan[None].cpu(), self.context())[0].double().numpy())

    def take(self, actions: FloatArray) -> None:
        """Take actions (executed, action), until the episode is over.

        Raises:
            InputError: a reward or an observation is not finite.
        """
        for action in actions:
            self._observation, reward, self.done = self._world.step(action)
            if not (math.isfinite(reward) and np.isfinite(self._observation).all()):
                raise InputError(
                    f"{self._task.name} gave the reward {reward} or an observation that is not "
                    f"finite at step {self._steps + 1} of an episode: the simulation diverged. "
                    "Check the actions of the planner that drove it; finished episodes are kept"
                )
            self._total += reward
            self._steps += 1
            if self.done:
                self._task.idle.append(self._world)
                break
        self.time = self._steps * self._task.frame_seconds

    def result(self) -> Result:
        """D4RL's normalised score, in points; success where the task knows one."""
        scoring = self._task.scoring
        success = None if scoring.complete is None else self._total >= scoring.complete
        figures = {"steps": float(self._steps), "rewards": self._total}
        return Result(success, scoring.score(self._total), figures)


@dataclass(frozen=True)
class Taught:
    """A planner of a task: its recipe, what it learns, and how.

    Attributes:
        runs: how many of the recorded runs, the first ones, it learns from; None for all.
        training: settings of :class:`muninn_bench.networks.trainer.Training`.
    """

    recipe: Recipe
    lesson: Callable[..., Lesson]
    training: Mapping[str, Any]
    runs: int | None = None


@dataclass(frozen=True)
class ControlTask:
    """A world and its planners; see :class:`muninn_bench.task.Task`.

    Attributes:
        world: makes a simulator.
        limit: frames of a recorded run that the clock ended, not the world.
        frame_seconds: between two steps.
        recording: how the data is made from a file of others.
        original: what that file is, and where it is from.
        taught: the planners, by variant.
        lanes: episodes that run side by side; their simulators are kept.
        idle: simulators that no episode uses.
    """

    name: str
    world: Callable[[], World]
    scoring: Scoring
    limit: int
    frame_seconds: float
    recording: Callable[[Path], Recording]
    original: str
    taught: Mapping[str, Taught]
    tolerance: float = 0.05
    unit: str = "of an executed action, in its worst channel; actions are within [-1, 1]"
    extra: str = ""
    replans: bool = True
    lanes: int = 150
    idle: list[World] = field(default_factory=list, compare=False, repr=False)

    @property
    def variants(self) -> tuple[str, ...]:
        """The planners."""
        return tuple(self.taught)

    def __hash__(self) -> int:
        return hash(self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "idle": []}  # a worker would build as many simulators at once

    def planner(self, variant: str) -> Planner:
        """Full compute."""
        return self.policy(variant).planner

    def metric(self, variant: str) -> Metric:
        """Largest difference of an executed action, after the critic's choice if there is one."""
        return self.policy(variant).metric()

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> ControlEpisode:
        """An episode from the world's own start."""
        # The simulator takes 31 bits.
        drawn = call_seed(seed, stream, number) % 2**31
        return ControlEpisode(self, self.policy(variant), drawn)

    def simulator(self) -> World:
        """A new one.

        Raises:
            InputError: a package that it needs is missing.
        """
        try:
            return self.world()
        except ImportError as error:
            raise InputError(
                f"the world of {self.name} needs a package that is missing ({error}); install it "
                "with `pip install muninn-bench`, which brings gymnasium, gymnasium-robotics and "
                "mujoco 3.3"
            ) from error

    def choice(self, variant: str) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Which candidate the critic has executed; None for planners of plans."""
        return self.policy(variant).choice

    def follow_all(self, episodes: Sequence[ControlEpisode], plans: Tensor) -> None:
        """Carry out plans of episodes of one variant; a critic chooses for all of them at once."""
        contexts = torch.cat([episode.context() for episode in episodes])
        actions = episodes[0].policy.act(plans, contexts).double().cpu().numpy()
        for episode, own in zip(episodes, actions, strict=True):
            episode.take(own)

    def guided(self, scale: float) -> ControlTask:
        """The same task with another scale of guidance; planners without one stay as they are."""

        def changed(taught: Taught) -> Taught:
            recipe: Any = taught.recipe
            if hasattr(recipe, "scale"):
                recipe = replace(recipe, scale=scale)
            return replace(taught, recipe=recipe)

        taught = {name: changed(taught) for name, taught in self.taught.items()}
        return replace(self, taught=taught)

    def policy(self, variant: str) -> Policy:
        """The trained planner, with its way into the world.

        Raises:
            InputError: its weights are missing, or of another task or planner.
        """
        return _policy(self, variant)

    def make_data(
        self,
        path: Path,
        count: int | None,
        seed: int,
        workers: Workers,
        source: Path | None = None,
    ) -> None:
        """Record runs from a file of others.

        Raises:
            InputError: the file is not named, or missing.
        """
        if source is None or not source.is_file():
            found = "is not named" if source is None else f"is not at {source}"
            raise InputError(
                f"the file that the data of {self.name} is made from {found}; it is {self.original}"
                f", laid out as the card says: muninn-bench data --task {self.name} --source FILE"
            )
        self.recording(source).generate(path, count, seed, workers)

    def training(self, variant: str, out: Path) -> Training:
        """As the planner's card says."""
        return Training(out, **self.taught[variant].training)

    def lesson(self, variant: str, data: Path, settings: Training) -> Lesson:
        """What the variant learns from recorded runs.

        Raises:
            InputError: the data is of another world, or too short.
        """
        taught, runs = self.taught[variant], load_runs(data)
        recipe = taught.recipe
        channels = recipe.observation + recipe.action + 1
        if (runs.frames.shape[1], runs.state_channels) != (channels, recipe.observation):
            raise InputError(
                f"{data} holds frames of {runs.frames.shape[1]} channels with observations of "
                f"{runs.state_channels}; {self.name} has {channels} and {recipe.observation}: make "
                f"its data with `muninn-bench data --task {self.name}`"
            )
        count = len(runs.offsets) - 1
        if taught.runs is not None and taught.runs < count:
            runs = split_runs(runs, 1.0 - taught.runs / count)[0]
        device = torch.device(settings.device)
        return taught.lesson(recipe, self.name, runs, self.limit, device, settings.seed)


@lru_cache
def _policy(task: ControlTask, variant: str) -> Policy:
    recipe = task.taught[variant].recipe
    path = model_file(f"{task.name}/{variant}/agent.safetensors", variant)
    return recipe.policy(load_agent(path, task.name, recipe.planner, recipe.networks()))
