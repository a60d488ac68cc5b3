"""Trained agents of others, which walk and run for the data: read from one safetensors file.

The agents are those of DLR-RM/rl-trained-agents (MIT), trained with Stable-Baselines3. The file
holds their weights as ``AGENT/TENSOR``, and in its metadata, per agent, kind and activation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from muninn.errors import InputError
from muninn.model.schedule import FloatArray

ORIGINAL = "https://github.com/DLR-RM/rl-trained-agents"

_ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "none": lambda x: x,
}
_LOG_STD = (-20.0, 2.0)
"""Bounds of a squashed Gaussian's log standard deviation, Stable-Baselines3's."""


@dataclass(frozen=True)
class WalkingAgent:
    """One agent; the layers of its policy as it was trained."""

    kind: str  # linear, gaussian or squashed_gaussian
    activation: Callable[[FloatArray], FloatArray]
    clip: float | None  # of normalised observations; None where they are not normalised
    epsilon: float
    tensors: dict[str, FloatArray]

    @property
    def timed(self) -> bool:
        """Whether it was also told the share of the episode that is left."""
        return len(self.tensors.get("observation_mean", ())) == 18

    def act(self, observation: FloatArray, step: int, noise: FloatArray | None) -> FloatArray:
        """An action within [-1, 1]; ``noise`` (action,) is of the agent's own exploration."""
        h = np.append(observation, 1.0 - step / 1000.0) if self.timed else observation
        found = self.tensors
        if self.clip is not None:
            spread = np.sqrt(found["observation_variance"] + self.epsilon)
            h = np.clip((h - found["observation_mean"]) / spread, -self.clip, self.clip)
        for layer in ("hidden.0", "hidden.2"):
            if f"{layer}.weight" in found:
                h = self.activation(found[f"{layer}.weight"] @ h + found[f"{layer}.bias"])
        action = found["mean.weight"] @ h + found.get("mean.bias", 0.0)
        if noise is not None:
            if self.kind == "squashed_gaussian":
                log_std = found["log_std.weight"] @ h + found["log_std.bias"]
                action = action + np.exp(np.clip(log_std, *_LOG_STD)) * noise
            elif self.kind == "gaussian":
                action = action + np.exp(found["log_std"]) * noise
        if self.kind == "squashed_gaussian":
            action = np.tanh(action)
        return np.asarray(np.clip(action, -1.0, 1.0), np.float64)


def read_agent(path: Path, name: str) -> WalkingAgent:
    """An agent of a file.

    Raises:
        InputError: there is no such file or agent, or it was cut short.
    """
    if not path.is_file():
        raise InputError(
            f"there are no agents at {path}; they are those of {ORIGINAL}, as one safetensors "
            "file: the card of the task says how it is laid out"
        )
    try:
        with safe_open(path, framework="np") as stored:
            known = stored.metadata() or {}
            if name not in known:
                raise InputError(f"{path} holds no agent {name!r}; it holds {', '.join(known)}")
            tensors: dict[str, NDArray[np.float32]] = {
                key.partition("/")[2]: stored.get_tensor(key)
                for key in stored.keys()  # noqa: SIM118
                if key.startswith(f"{name}/")
            }
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read ({error}); copy it again") from error
    about = json.loads(known[name])
    return WalkingAgent(
        about["kind"],
        _ACTIVATIONS[about["activation"]],
        about["clip_observation"] if about["normalised"] else None,
        about["epsilon"] or 0.0,
        {key: value.astype(np.float64) for key, value in tensors.items()},
    )
