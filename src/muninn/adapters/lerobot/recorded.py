"""Calls that a LeRobot policy would make along recorded observations: open-loop calibration.

A policy with an action queue plans at the steps 0, n_action_steps, 2 n_action_steps, ... of an
episode, from its last n_obs_steps observations (the first one repeated where there is no past).
Its own ``select_action`` is shown these observations, and its loop is told the contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.adapters.lerobot.policy import Processor, answered, as_batch
from muninn.adapters.registry import planner_of
from muninn.certify.paired import call_seed
from muninn.certify.sources import files_in, gather, read_file
from muninn.context import Context
from muninn.errors import InputError
from muninn.progress import bars

Frames = tuple[int, Callable[[int], Mapping[str, Any]]]
"""How many observations an episode has, and the one at a step."""

_Episode = tuple[str, Callable[[], Frames]]  # what errors call it; opens it


def recorded_calls(
    policy: Any,
    recordings: Any,
    *,
    preprocessor: Processor | None = None,
    count: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Context:
    """Contexts for calibration: one random call of each of ``count`` random episodes.

    Calls of one episode depend on each other, and the proof needs calls that do not: so never
    more than one of each. The certificate is *open loop*.

    Args:
        policy: of LeRobot, in eval mode; its queues are emptied.
        recordings: a LeRobotDataset (with or without ``delta_timestamps``); or anything indexable
            that yields observations as it does, with ``episode_index`` (without it each item is an
            episode of one step); or a folder, one file per episode, see
            :func:`muninn.certify.sources.read_file`: ``{"observation.state": (steps, dim), ...}``.
        preprocessor: the policy's own; None if the observations are what it returns.
        count: episodes to draw, without replacement; None takes all. Too few episodes, and unusable
            ones, which are named, are an InputError.
    """
    episodes = _episodes(policy, recordings)
    if count is not None and not 1 <= count <= len(episodes):
        raise InputError(
            f"{count} calls of {len(episodes)} episodes: calls of one episode depend on each "
            "other, so each gives one. Record more episodes, or accept a higher risk"
        )
    order = np.random.default_rng(call_seed(seed)).permutation(len(episodes))[:count]
    return _replay(policy, episodes, sorted(order.tolist()), seed, preprocessor, progress)[0]


def recorded_episodes(
    policy: Any, recordings: Any, *, preprocessor: Processor | None = None, progress: bool = True
) -> tuple[Context, list[int]]:
    """Contexts of every call of every episode, and the number of the episode of each.

    For ``calibrate(planner, contexts, unit="episode", episode_of=numbers)``; the arguments are
    those of :func:`recorded_calls`.
    """
    episodes = _episodes(policy, recordings)
    return _replay(policy, episodes, range(len(episodes)), None, preprocessor, progress)


def _replay(
    policy: Any,
    episodes: Sequence[_Episode],
    chosen: Sequence[int],
    seed: int | None,
    preprocessor: Processor | None,
    progress: bool,
) -> tuple[Context, list[int]]:
    """Contexts of the calls of the chosen episodes, or of one drawn call each with a seed."""
    planner = planner_of(policy)
    told, contexts = list[Context](), list[Context]()
    episode_of, problems = list[int](), list[str]()

    def answer(context: Context) -> Tensor:
        told.append(context)
        return torch.zeros(1, *planner.shape, device=planner.device, dtype=planner.dtype)

    with bars(progress) as task, answered(policy, answer):
        advance = task("recorded episodes", len(chosen))
        for number in chosen:
            name, opened = episodes[number]
            try:
                frames = opened()
                calls: Sequence[int] = range(0, frames[0], policy.config.n_action_steps)
                if seed is not None:
                    generator = np.random.default_rng(call_seed(seed, number))
                    calls = [calls[int(generator.integers(len(calls)))]]
                for call in calls:
                    for batch in _history(policy, frames, call, preprocessor, name):
                        told.clear()
                        policy.select_action(dict(batch))
                    if not told:
                        raise InputError(f"{name}: the policy did not plan at step {call}")
                    contexts.append(told[0])
                    episode_of.append(number)
                    policy.reset()
            except InputError as error:
                problems.append(str(error))
                policy.reset()
            advance(1)
    if problems:
        more = f"\n... and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(
            f"{len(problems)} of {len(chosen)} episodes cannot be used; none was left out "
            "silently:\n" + "\n".join(problems[:5]) + more
        )
    return gather(contexts), episode_of


def _history(
    policy: Any, frames: Frames, call: int, preprocessor: Processor | None, name: str
) -> list[dict[str, Any]]:
    """Observations after which a policy that was reset plans as at step ``call`` of the episode.

    It plans at the first and then every n_action_steps; only the last n_obs_steps are remembered.
    So the oldest one that it looks at is shown until the last falls on a step where it plans.
    """
    seen, every = policy.config.n_obs_steps, policy.config.n_action_steps
    window = [max(0, call - back) for back in range(seen - 1, -1, -1)]
    batches = {
        step: as_batch(policy, frames[1](step), preprocessor, f"{name}, step {step}")
        for step in sorted(set(window))
    }
    shown = 1 + every * -(-(seen - 1) // every)
    return [batches[step] for step in [window[0]] * (shown - seen) + window]


def _episodes(policy: Any, recordings: Any) -> list[_Episode]:
    if isinstance(recordings, str | Path):
        if (Path(recordings) / "meta" / "info.json").is_file():
            raise InputError(
                f"{recordings} is a LeRobot dataset; open it: "
                f"LeRobotDataset(repo_id, root={str(recordings)!r})"
            )
        return [(str(path), partial(_of_file, path)) for path in files_in(recordings)]
    if not (hasattr(recordings, "__getitem__") and hasattr(recordings, "__len__")):
        raise InputError(
            f"recordings is {type(recordings).__name__}; give a LeRobotDataset, a list of "
            "observations, or a folder"
        )
    if not len(recordings):
        raise InputError("recordings is empty; give at least one episode")
    first, seen = recordings[0], policy.config.n_obs_steps
    if isinstance(first, Mapping) and "episode_index" not in first:
        if seen > 1:
            raise InputError(
                f"observations have no episode_index, so that the {seen} that the policy looks at "
                "cannot be found; add it"
            )
        labels = np.arange(len(recordings))
    elif hasattr(recordings, "hf_dataset"):  # LeRobot's: the column, no image decoded
        column = recordings.hf_dataset.with_format(None)["episode_index"]
        labels = np.array([int(label) for label in column])
    else:
        labels = np.array([_label(recordings[at], at) for at in range(len(recordings))])
    places = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    return [(f"episode {label}", partial(_of_part, recordings, at)) for label, at in places.items()]


def _label(frame: Any, at: int) -> int:
    if not isinstance(frame, Mapping):
        raise InputError(f"frame {at} of recordings yields {type(frame).__name__}; give dicts")
    if "episode_index" not in frame:
        raise InputError(
            f"frame {at} of recordings has no episode_index, unlike frame 0; it has "
            f"{', '.join(sorted(map(str, frame)))}. Add it to every frame, or to none"
        )
    try:
        return int(frame["episode_index"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"frame {at} of recordings has episode_index {frame['episode_index']!r}; give the "
            "whole number of its episode"
        ) from error


def _of_file(path: Path) -> Frames:
    arrays = read_file(path)
    steps = len(next(iter(arrays.values())))
    return steps, lambda step: {key: values[step] for key, values in arrays.items()}


def _of_part(dataset: Any, positions: Any) -> Frames:
    """Frames of one episode, without the history that ``delta_timestamps`` adds."""

    def frame(step: int) -> dict[str, Any]:
        found = dict(dataset[int(positions[step])])
        for key, seconds in (getattr(dataset, "delta_timestamps", None) or {}).items():
            steps = [round(delta * dataset.fps) for delta in seconds]
            if 0 in steps and key.startswith("observation."):
                found[key] = found[key][steps.index(0)]
        return found

    return len(positions), frame
