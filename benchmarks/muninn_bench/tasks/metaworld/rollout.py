"""Closed loop: many episodes in lock-step, so that the network sees them as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muninn.certify.metrics import measure
from muninn.certify.paired import call_seed
from muninn_bench.measure.protocol import Run
from muninn_bench.tasks.metaworld.subjects import Subject
from muninn_bench.tasks.metaworld.world import STEP_LIMIT, PickPlace, draw_problem

LANES = 50
"""Episodes that run side by side."""


@dataclass
class Episode:
    """One closed-loop episode; lists hold one entry per planning call.

    Attributes:
        success: whether the environment said so at any step.
        contexts: what the network was told, each (condition,).
        evaluations: of the network.
        deviation: from full compute at the same context and noise; empty without a shadow.
    """

    success: bool = False
    contexts: list[Tensor] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    deviation: list[float] = field(default_factory=list)

    def random_call(self, seed: int, number: int) -> int:
        """A call drawn uniformly; calls inside an episode depend on each other."""
        draw = np.random.default_rng(call_seed(seed, number, 1, 1)).random()
        return int(draw * len(self.contexts))


def roll_out(
    subject: Subject,
    run: Run,
    stream: int,
    count: int,
    *,
    seed: int,
    shadow: Run | None = None,
    advance: Callable[[int], None] = lambda episodes: None,
) -> list[Episode]:
    """Episodes 0 to ``count`` of a stream of problems, driven by a method.

    As with LeRobot's action queue, the policy plans from its last two observations (the first one
    twice), and the 8 executed actions are carried out before it plans again. An episode ends with
    success, or without it after ``STEP_LIMIT`` steps. The noise of a call is a function of seed,
    episode and call alone: methods are paired.

    Args:
        subject: the policy.
        run: the method.
        stream: of problems.
        count: episodes.
        seed: of the noise.
        shadow: full compute, to measure every call's deviation; its plans are not executed.
        advance: told how many episodes have ended.
    """
    episodes: list[Episode] = []
    for first in range(0, count, LANES):
        numbers = range(first, min(first + LANES, count))
        episodes += _lock_step(subject, run, stream, numbers, seed, shadow)
        advance(len(numbers))
    return episodes


def _lock_step(
    subject: Subject, run: Run, stream: int, numbers: range, seed: int, shadow: Run | None
) -> list[Episode]:
    worlds = [_world(lane) for lane in range(len(numbers))]
    first = np.stack(
        [world.reset(draw_problem(stream, n)) for world, n in zip(worlds, numbers, strict=True)]
    )
    histories = np.stack([first, first], axis=1)
    episodes = [Episode() for _ in numbers]
    running = list(range(len(numbers)))
    for call in range(STEP_LIMIT // subject.policy.config.n_action_steps):
        contexts = subject.contexts(histories[running])
        seeds = [call_seed(seed, numbers[lane], call) for lane in running]
        noise = subject.planner.draw_noise(seeds=seeds)
        plans, record = run(contexts, noise)
        deviation: NDArray[np.float64] | None = None
        if shadow is not None:
            deviation = measure(subject.metric(), shadow(contexts, noise)[0], plans)
        for row, (lane, actions) in enumerate(zip(running, subject.actions(plans), strict=True)):
            episode = episodes[lane]
            episode.contexts.append(contexts[row])
            episode.evaluations.append(int(record.evaluations[row]))
            if deviation is not None:
                episode.deviation.append(float(deviation[row]))
            for observation, success in _execute(worlds[lane], actions):
                histories[lane] = histories[lane, 1], observation
                episode.success |= success
        running = [lane for lane in running if not episodes[lane].success]
        if not running:
            break
    return episodes


def _execute(
    world: PickPlace, actions: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.float64], bool]]:
    """Carry out actions until success."""
    for action in actions:
        observation, success = world.step(action)
        yield observation, success
        if success:
            return


@cache
def _world(lane: int) -> PickPlace:
    """This process's environments; building one takes as long as two episodes."""
    return PickPlace()


def random_contexts(episodes: list[Episode], seed: int) -> Tensor:
    """The context of one random call of each episode, (episodes, condition)."""
    return torch.stack(
        [episode.contexts[episode.random_call(seed, n)] for n, episode in enumerate(episodes)]
    )
