"""A trained policy of several networks, with its coordinates, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from muninn.errors import InputError
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.weights import read_weights, write_weights

_FORMAT = "muninn-agent-1"


@dataclass(frozen=True)
class Agent:
    """What a planner's lesson has learned on a task.

    Attributes:
        task, planner: what it was trained for; a file of another is refused.
        networks: by name, as the planner's recipe builds them.
        coordinates: of an observation, then of an action.
        steps: of the noise schedule.
        numbers: whatever else was learned from the data, by name.
    """

    task: str
    planner: str
    networks: nn.ModuleDict
    coordinates: Coordinates
    steps: int
    numbers: Mapping[str, float] = field(default_factory=dict)


def save_agent(path: Path | str, agent: Agent) -> None:
    """Write the networks in half precision; with a critic in float32: it tells apart actions that
    are nearly as good."""
    description = {
        "format": _FORMAT,
        "task": agent.task,
        "planner": agent.planner,
        "steps": agent.steps,
        "low": agent.coordinates.low.tolist(),
        "high": agent.coordinates.high.tolist(),
        "numbers": dict(agent.numbers),
    }
    precision = torch.float32 if "critic" in agent.networks else torch.float16
    write_weights(path, description, agent.networks.state_dict(), precision)


def load_agent(path: Path | str, task: str, planner: str, networks: nn.ModuleDict) -> Agent:
    """Read a file into untrained networks; they come back in evaluation mode, without gradients.

    Raises:
        InputError: the file is of another task or planner, of other networks, or cut short.
    """
    description, weights = read_weights(path, _FORMAT)
    made_for = (description["task"], description["planner"])
    if made_for != (task, planner):
        raise InputError(
            f"{path} is of {made_for[1]} on {made_for[0]}, not of {planner} on {task}; train it "
            f"with `muninn-bench train --task {task}`"
        )
    try:
        networks.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"{path} holds other networks than this version builds; train it again with "
            f"`muninn-bench train --task {task}` ({error})"
        ) from error
    limits = Coordinates(torch.tensor(description["low"]), torch.tensor(description["high"]))
    return Agent(
        task,
        planner,
        networks.eval().requires_grad_(False),
        limits,
        description["steps"],
        description["numbers"],
    )
