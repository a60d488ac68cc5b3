"""Episodes of a gymnasium environment that a LeRobot policy drives: closed-loop calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

from muninn.adapters.lerobot.policy import Processor, answered, as_batch
from muninn.certify.outcomes import Outcomes
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
    run = _episode(policy, environment, preprocessor, postprocessor, observe, steps)

    def drive(plan: PlanFunction, seed: int) -> None:
        run(plan, seed)

    drive.__qualname__ = f"driven_episodes:{run.__qualname__}"
    return Episodes(drive, count)


def driven_outcomes(
    policy: Any,
    environment: Any,
    count: int,
    *,
    preprocessor: Processor | None = None,
    postprocessor: Processor | None = None,
    observe: Callable[[Any], Mapping[str, Any]] | None = None,
    steps: int | None = None,
    success: Callable[[Mapping[str, Any]], bool] | None = None,
    **promised: Any,
) -> Outcomes:
    """Episodes whose success is promised, as LeRobot's evaluation counts it.

    The arguments are those of :func:`driven_episodes`. ``success`` reads what ``step`` tells, by
    default its ``is_success`` or ``success``; an episode succeeds if any step does. What else is
    given (``promise``, ``margin``, ``tune``) goes to :class:`muninn.Outcomes`.
    """
    run = _episode(policy, environment, preprocessor, postprocessor, observe, steps)
    read = success or _success

    def outcome(plan: PlanFunction, seed: int) -> bool:
        return any(map(read, run(plan, seed)))

    outcome.__qualname__ = f"driven_outcomes:{run.__qualname__}"
    return Outcomes(outcome, count, **promised)


def _success(told: Mapping[str, Any]) -> bool:
    for name in ("is_success", "success"):
        if name in told:
            return bool(np.any(told[name]))
    raise InputError(
        f"the environment tells {', '.join(sorted(told)) or 'nothing'}, neither is_success nor "
        "success; pass success=function that reads it"
    )


def _episode(
    policy: Any,
    environment: Any,
    preprocessor: Processor | None,
    postprocessor: Processor | None,
    observe: Callable[[Any], Mapping[str, Any]] | None,
    steps: int | None,
) -> Callable[[PlanFunction, int], list[Mapping[str, Any]]]:
    """Drives one episode, and returns what the environment told at every step."""
    if hasattr(environment, "num_envs"):
        raise InputError("environment is a vector of environments; give one of them")
    own = getattr(getattr(environment, "spec", None), "max_episode_steps", None)
    own = own or getattr(environment.unwrapped, "_max_episode_steps", None)
    limit = own if steps is None else steps
    if limit is None or limit < 1:
        raise InputError(
            f"steps is {steps} and the environment's own limit {own}; give steps, at least 1"
        )

    def run(plan: PlanFunction, seed: int) -> list[Mapping[str, Any]]:
        told: list[Mapping[str, Any]] = []
        with answered(policy, plan):
            torch.manual_seed(seed)  # for environments and processors that draw from torch
            observation, _ = environment.reset(seed=seed % 2**32)  # some take no more bits
            for step in range(limit):
                frame = {**_task(environment), **(observe or _as_lerobot)(observation)}
                where = f"the environment's observation at step {step}"
                action = policy.select_action(as_batch(policy, frame, preprocessor, where))
                physical = action if postprocessor is None else postprocessor(action)
                command = np.asarray(physical.detach().cpu())[0]
                observation, _, terminated, truncated, info = environment.step(command)
                told.append(info)
                if terminated or truncated:
                    break
        return told

    run.__qualname__ = f"{type(environment.unwrapped).__qualname__}:{limit} steps"
    return run


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
    preprocess = import_module("lerobot.envs.utils").preprocess_observation
    batch = preprocess(_batched(observation))  # it guesses whether there is a batch
    frame = {key: value[0] for key, value in batch.items() if isinstance(value, torch.Tensor)}
    if not frame:
        keys = ", ".join(sorted(observation))
        raise InputError(
            f"the environment's observation has the keys {keys}, none of LeRobot's; {advice}"
        )
    return frame


def _batched(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _batched(each) for key, each in value.items()}
    return value[None] if isinstance(value, np.ndarray) else value
