"""Make the policy's training data: episodes of Meta-World's scripted expert, disturbed.

Noise is added to the actions that are executed, the expert's own actions are recorded: they show
the way back from wherever the noise led. Every episode is a function of its index alone; finished
shards are kept and reused when the command is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.progress import bars
from muninn_bench.tasks.metaworld.world import (
    ACTION,
    DATA,
    STEP_LIMIT,
    PickPlace,
    draw_problem,
    expert_action,
)

LARGEST_NOISE = 0.3
"""Largest standard deviation of an episode's noise, in units of the action (3 mm a step)."""

HOLD_STEPS = 16
"""Steps recorded after success: whole plans of staying at the goal."""

SHARD_EPISODES = 100

Episode = tuple[NDArray[np.floating], NDArray[np.floating]]
"""Observations (steps, 39) and the expert's actions (steps, 4)."""


@dataclass(frozen=True)
class Demonstrations:
    """Episodes of different lengths, one after another."""

    observations: NDArray[np.float32]  # (total steps, 39)
    actions: NDArray[np.float32]  # the expert's, (total steps, 4)
    offsets: NDArray[np.int64]  # first step of each episode and the total, (episodes + 1,)

    @property
    def episodes(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    def part(self, first: int, last: int) -> Demonstrations:
        """Episodes ``first`` to ``last``, the latter not included."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        return Demonstrations(
            self.observations[begin:end],
            self.actions[begin:end],
            self.offsets[first : last + 1] - begin,
        )


def demonstrate(world: PickPlace, index: int) -> tuple[FloatArray, FloatArray]:
    """One successful :data:`Episode`.

    A quarter of the episodes has no noise; an episode whose noise makes the expert fail is tried
    again with half of it.
    """
    generator = np.random.default_rng([DATA, index, 1])
    problem = draw_problem(DATA, index)
    scale = max(0.0, generator.uniform(-1.0 / 3.0, 1.0)) * LARGEST_NOISE
    while True:
        observation = world.reset(problem)
        observations: list[FloatArray] = []
        actions: list[FloatArray] = []
        success_at: int | None = None
        while len(actions) < (STEP_LIMIT if success_at is None else success_at + HOLD_STEPS):
            action = expert_action(observation)
            observations.append(observation)
            actions.append(action)
            # Never on the gripper: a dropped puck teaches nothing.
            disturbed = action + scale * np.append(generator.standard_normal(ACTION - 1), 0.0)
            observation, success = world.step(disturbed)
            if success and success_at is None:
                success_at = len(actions)
        if success_at is not None:
            return np.array(observations), np.array(actions)
        if scale < 1e-3:
            raise InputError(
                f"the expert fails problem {index} of the data; check the version of Meta-World "
                "(3.1.1) and of mujoco (3.3.0)"
            )
        scale /= 2.0


def save_demonstrations(path: Path, episodes: Sequence[Episode]) -> None:
    """Write episodes; the file appears whole or not at all."""
    store = partial(
        np.savez_compressed,
        observations=np.concatenate([seen for seen, _ in episodes]).astype(np.float32),
        actions=np.concatenate([done for _, done in episodes]).astype(np.float32),
        offsets=np.cumsum([0, *(len(done) for _, done in episodes)]).astype(np.int64),
    )
    write_whole(path, store)


def load_demonstrations(path: Path) -> Demonstrations:
    """Read a file of :func:`save_demonstrations`.

    Raises:
        InputError: no such file; says how to make it.
    """
    if not path.is_file():
        raise InputError(
            f"{path} was not found; make it with: muninn-bench data --task metaworld --out {path}"
        )
    with np.load(path) as stored:
        return Demonstrations(**stored)


def generate(out: Path, count: int, *, progress: bool = True) -> Path:
    """Write ``count`` episodes to ``out``; a file that holds them already is left as it is."""
    if out.is_file() and load_demonstrations(out).episodes == count:
        return out
    episodes: list[Episode] = []
    world: PickPlace | None = None
    with bars(progress) as task:
        advance = task("demonstrations", count)
        for first in range(0, count, SHARD_EPISODES):
            last = min(first + SHARD_EPISODES, count)
            shard = out.with_suffix("") / f"{first:06d}-{last:06d}.npz"
            if not shard.is_file():
                world = world or PickPlace()
                save_demonstrations(shard, [demonstrate(world, at) for at in range(first, last)])
            stored = load_demonstrations(shard)
            within = stored.offsets[1:-1]
            split = (np.split(values, within) for values in (stored.observations, stored.actions))
            episodes += zip(*split, strict=True)
            advance(last - first)
    save_demonstrations(out, episodes)
    return out
