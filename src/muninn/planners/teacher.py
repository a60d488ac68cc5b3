"""A trained planner with everything needed to use it, in one safetensors file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from muninn.errors import InputError
from muninn.planners.unet import TemporalUnet, UnetConfig
from muninn.schedule import Schedule

_FORMAT = "muninn-teacher-1"


@dataclass(frozen=True)
class Teacher:
    """A trained network, its coordinates and its noise schedule.

    The network predicts x0 in normalised coordinates; predictions are clipped to ``[-1, 1]``.

    Attributes:
        network: Maps ``(x, t)`` to the clean plan, all ``(batch, horizon, channels)``.
        low: World value that becomes -1, per channel, shape ``(channels,)``.
        high: World value that becomes +1, per channel, shape ``(channels,)``.
        horizon: Frames in a plan.
        schedule: Noise schedule the network was trained on.
        frame_seconds: Seconds between two frames of a plan.
    """

    network: TemporalUnet
    low: Tensor
    high: Tensor
    horizon: int
    schedule: Schedule
    frame_seconds: float

    def normalise(self, world: Tensor) -> Tensor:
        """Map world units to ``[-1, 1]``; the last axis holds the first channels, all or fewer."""
        low, high = self._limits(world)
        return 2.0 * (world - low) / (high - low) - 1.0

    def unnormalise(self, plan: Tensor) -> Tensor:
        """Map ``[-1, 1]`` to world units; the last axis holds the first channels, all or fewer."""
        low, high = self._limits(plan)
        return (plan + 1.0) / 2.0 * (high - low) + low

    def _limits(self, values: Tensor) -> tuple[Tensor, Tensor]:
        count = values.shape[-1]
        if count > len(self.low):
            raise InputError(f"a plan has {len(self.low)} channels, got {count}")
        return self.low[:count].to(values.device), self.high[:count].to(values.device)


def save_teacher(path: Path | str, teacher: Teacher) -> None:
    """Write weights in half precision, with architecture, limits and schedule as JSON metadata."""
    description = {
        "format": _FORMAT,
        "architecture": asdict(teacher.network.config),
        "horizon": teacher.horizon,
        "low": teacher.low.tolist(),
        "high": teacher.high.tolist(),
        "schedule": {"name": teacher.schedule.name, "steps": teacher.schedule.steps},
        "predicts": "x0",
        "clip": 1.0,
        "frame_seconds": teacher.frame_seconds,
    }
    weights = {
        name: value.detach().to("cpu", torch.float16).contiguous()
        for name, value in teacher.network.state_dict().items()
    }
    save_file(weights, path, metadata={"muninn": json.dumps(description)})


def load_teacher(path: Path | str) -> Teacher:
    """Read a teacher; the network comes in float32, in evaluation mode, without gradients.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If the file is not a teacher or its schedule is unknown.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"no teacher at {path}")
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata() or {}
        weights = {name: stored.get_tensor(name).float() for name in stored.keys()}  # noqa: SIM118
    description = json.loads(metadata.get("muninn", "{}"))
    if description.get("format") != _FORMAT:
        raise InputError(f"{path} is not a {_FORMAT} file: format {description.get('format')!r}")
    if description["schedule"]["name"] != "cosine":
        raise InputError(f"unknown schedule {description['schedule']['name']!r}; known: 'cosine'")
    architecture = description["architecture"]
    config = UnetConfig(**{**architecture, "widths": tuple(architecture["widths"])})
    schedule = Schedule.cosine(description["schedule"]["steps"])
    network = TemporalUnet(config, schedule, description["horizon"])
    network.load_state_dict(weights)
    return Teacher(
        network=network.eval().requires_grad_(False),
        low=torch.tensor(description["low"]),
        high=torch.tensor(description["high"]),
        horizon=description["horizon"],
        schedule=schedule,
        frame_seconds=description["frame_seconds"],
    )
