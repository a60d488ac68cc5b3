"""Episodes of a gymnasium environment that a LeRobot policy drives: closed-loop calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

from muninn.adapters.lerobot.policy import Processor, answered, as_batch
from muninn.certify.units import Episodes, PlanFunction
from muninn.errors import InputError


def driven_episodes(
    policy: Any,
    environment: Any,
    count: int,
    *,
    preprocessor: Processor | None = None,
    postprocessor: Processor | None = None,
    observe: Callable[[Any], Mapping[str, Any]] | None = None,
    steps: int | None = None,
) -> Episodes:
    """Closed-loop episodes: the policy acts in the environment, each program planning for it.

    During calibration every member of the family drives its own episodes, with full compute in
    its shadow at every call. Processors, history and action queue are those of deployment.

    Args:
        policy: of LeRobot, in eval mode; its queues are emptied.
        environment: one gymnasium environment, not a vector of them. ``reset(seed=)`` begins an
            episode; termination, truncation or ``steps`` ends it.
        preprocessor, postprocessor: the policy's own; None where it has none.
        observe: observation of the environment to one of the policy, keys as in its dataset,
            without batch. By default as LeRobot does (``agent_pos``, ``environment_state``,
            ``pixels``); keys that begin with ``observation.`` are taken as they are.
        steps: after which an episode ends; by default the environment's own limit. Without either
            it is an InputError; so is, while driving, an observation without what the policy needs.
    """
    if hasattr(environment, "num_envs"):
        raise InputError("environment is a vector of environments; give one of them")
    own = getattr(getattr(environment, "spec", None), "max_episode_steps", None)
    own = own or getattr(environment.unwrapped, "_max_episode_steps", None)
    limit = own if steps is None else steps
    if limit is None or limit < 1:
        raise InputError(
            f"steps is {steps} and the environment's own limit {own}; give steps, at least 1"
        )

    def drive(plan: PlanFunction, seed: int) -> None:
        with answered(policy, plan):
            torch.manual_seed(seed)  # for environments and processors that draw from torch
            observation, _ = environment.reset(seed=seed % 2**32)  # some take no more bits
            for step in range(limit):
                frame = {**_task(environment), **(observe or _as_lerobot)(observation)}
                where = f"the environment's observation at step {step}"
                action = policy.select_action(as_batch(policy, frame, preprocessor, where))
                physical = action if postprocessor is None else postprocessor(action)
                command = np.asarray(physical.detach().cpu())[0]
                observation, _, terminated, truncated, _ = environment.step(command)
                if terminated or truncated:
                    return

    drive.__qualname__ = f"driven_episodes:{type(environment.unwrapped).__qualname__}:{limit} steps"
    return Episodes(drive, count)


def _task(environment: Any) -> dict[str, str]:
    """What LeRobot's evaluation tells policies that read instructions."""
    named = (getattr(environment.unwrapped, name, None) for name in ("task_description", "task"))
    return {"task": next((text for text in named if isinstance(text, str)), "")}


def _as_lerobot(observation: Any) -> Mapping[str, Any]:
    advice = "pass observe=function that makes a dict with the policy's keys"
    if not isinstance(observation, Mapping):
        kind = type(observation).__name__
        raise InputError(f"the environment returns {kind}, not a dict; {advice}")
    if all(key.startswith("observation.") for key in observation):
        return observation
    batch = import_module("lerobot.envs.utils").preprocess_observation(dict(observation))
    frame = {key: value[0] for key, value in batch.items() if isinstance(value, torch.Tensor)}
    if not frame:
        keys = ", ".join(sorted(observation))
        raise InputError(
            f"the environment's observation has the keys {keys}, none of LeRobot's; {advice}"
        )
    return frame
