"""Demonstrations by people, replayed: their joint targets are followed in the environment.

They are those of relay-policy-learning (Gupta et al. 2019), in one safetensors file: ``targets``
(frames, 9), joint positions every 80 ms; ``ends``, the frame after each demonstration; ``group``,
its number in the metadata's list ``groups``, whose names say which tasks it does.
"""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.kitchen.world import LIMIT, OBSERVATION, STEP_SECONDS, Kitchen, towards
from muninn_bench.tasks.recorded import Recording

ORIGINAL = "https://github.com/google-research/relay-policy-learning"

COMPLETE = "friday_microwave_kettle_switch_slide"
"""The group whose demonstrations do the four tasks of the episode: D4RL's kitchen-complete."""

COMPLETE_RUNS, RUNS = 19, 552
"""Demonstrations of that group, which come first in the data, and of all groups."""

NO_LIMIT = 10 * LIMIT
"""No demonstration is ended by the clock."""


@cache
def demonstrations(source: Path) -> tuple[FloatArray, ...]:
    """Joint targets (frames, 9) of every demonstration; those of :data:`COMPLETE` come first.

    Raises:
        InputError: the file was cut short, or holds something else.
    """
    try:
        with safe_open(source, framework="np") as stored:
            names = json.loads((stored.metadata() or {}).get("groups", "[]"))
            if COMPLETE not in names:
                raise InputError(
                    f"{source} holds no demonstrations of {COMPLETE}; they are those of {ORIGINAL}"
                )
            ends, group = stored.get_tensor("ends"), stored.get_tensor("group")
            parts = np.split(stored.get_tensor("targets").astype(np.float64), ends[:-1])
    except SafetensorError as error:
        raise InputError(f"{source} cannot be read ({error}); copy it again") from error
    order = np.argsort(group != names.index(COMPLETE), kind="stable")
    return tuple(parts[place] for place in order)


def make_runs(source: Path, seed: int, index: int) -> list[FloatArray]:
    """Demonstration ``index``: observation, action and reward a frame, (frames, 69).

    It ends where the episode would, when the four tasks are done, or with the demonstration.

    Raises:
        InputError: there are fewer demonstrations.
    """
    every = demonstrations(source)
    if index >= len(every):
        raise InputError(f"{source} has {len(every)} demonstrations; ask for --count {len(every)}")
    generator = np.random.default_rng([seed, index])
    world = _kitchen()
    observation = world.reset(int(generator.integers(2**31)))
    frames: list[FloatArray] = []
    for target in every[index]:
        action = towards(target, observation)
        after, reward, ended = world.step(action)
        frames.append(np.concatenate([observation, action, [reward]]))
        observation = after
        if ended:
            break
    return [np.array(frames)]


@cache
def _kitchen() -> Kitchen:
    """This process's simulator, without a clock."""
    return Kitchen(NO_LIMIT)


def recording(source: Path) -> Recording:
    """Of the demonstrations of a file."""
    make = partial(make_runs, source)
    return Recording("kitchen", make, RUNS, STEP_SECONDS, 9, OBSERVATION, shard=6)
