"""A trained planner with everything needed to use it, in one safetensors file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.model.sampler import Kind
from muninn.model.schedule import Schedule
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.networks.weights import read_weights, write_weights

Network = TemporalUnet | TrajectoryTransformer
NetworkConfig = UnetConfig | TransformerConfig

_FORMAT = "muninn-teacher-1"
_STORED_KINDS: dict[Kind, str] = {"sample": "x0", "epsilon": "epsilon"}


@dataclass(frozen=True)
class Teacher:
    """A trained network, its coordinates and its noise schedule.

    The network works in normalised coordinates, which are affine per channel. For the U-Net the
    limits are those of the data and ``clip`` is 1; for the Transformer they are ``mean - std`` and
    ``mean + std``, so that values are standardised, and ``clip`` is the largest of the data.

    Attributes:
        network: maps ``(x, t)`` to its prediction, all ``(batch, horizon, channels)``.
        low, high: world values that become -1 and +1, ``(channels,)``.
        horizon, frame_seconds: frames in a plan, and the time between two.
        schedule: on which the network was trained.
        clip: bound on clean plans in normalised coordinates; samplers clip to it.
    """

    network: Network
    low: Tensor
    high: Tensor
    horizon: int
    schedule: Schedule
    frame_seconds: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not self.clip > 0.0:
            raise InputError(f"clip must be a positive bound on clean plans, got {self.clip}")

    @property
    def predicts(self) -> Kind:
        """``sample``, the clean plan, or ``epsilon``, the noise."""
        return self.network.predicts

    def normalise(self, world: Tensor) -> Tensor:
        """Map ``[low, high]`` to ``[-1, 1]``; the last axis: all channels, or the first few."""
        return Coordinates(self.low, self.high).normalise(world)

    def unnormalise(self, plan: Tensor) -> Tensor:
        """Map ``[-1, 1]`` to ``[low, high]``; the last axis: all channels, or the first few."""
        return Coordinates(self.low, self.high).unnormalise(plan)


def build_network(config: NetworkConfig, schedule: Schedule, horizon: int) -> Network:
    """Return a new network of the architecture that the settings belong to."""
    if isinstance(config, TransformerConfig):
        return TrajectoryTransformer(config, schedule, horizon)
    return TemporalUnet(config, schedule, horizon)


def save_teacher(path: Path | str, teacher: Teacher) -> None:
    """Write weights in half precision, with architecture, limits and schedule as JSON metadata."""
    description = {
        "format": _FORMAT,
        "network": "unet" if isinstance(teacher.network, TemporalUnet) else "transformer",
        "architecture": asdict(teacher.network.config),
        "horizon": teacher.horizon,
        "low": teacher.low.tolist(),
        "high": teacher.high.tolist(),
        "schedule": {"name": teacher.schedule.name, "steps": teacher.schedule.steps},
        "predicts": _STORED_KINDS[teacher.predicts],
        "clip": teacher.clip,
        "frame_seconds": teacher.frame_seconds,
    }
    write_weights(path, description, teacher.network.state_dict(), torch.float16)


def load_teacher(path: Path | str) -> Teacher:
    """Read a teacher; the network comes in float32, in evaluation mode, without gradients.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it is not a teacher, or its network, prediction or schedule is unknown.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"no teacher at {path}")
    description, weights = read_weights(path, _FORMAT)
    if description["schedule"]["name"] != "cosine":
        raise InputError(f"unknown schedule {description['schedule']['name']!r}; known: 'cosine'")
    schedule = Schedule.cosine(description["schedule"]["steps"])
    name, settings = description.get("network", "unet"), description["architecture"]
    config: NetworkConfig
    if name == "unet":
        config = UnetConfig(**{**settings, "widths": tuple(settings["widths"])})
    elif name == "transformer":
        config = TransformerConfig(**settings)
    else:
        raise InputError(f"unknown network {name!r}; known: 'unet', 'transformer'")
    network = build_network(config, schedule, description["horizon"])
    if description["predicts"] != (known := _STORED_KINDS[network.predicts]):
        raise InputError(f"unknown prediction {description['predicts']!r}; a {name} has {known!r}")
    network.load_state_dict(weights)
    return Teacher(
        network=network.eval().requires_grad_(False),
        low=torch.tensor(description["low"]),
        high=torch.tensor(description["high"]),
        horizon=description["horizon"],
        schedule=schedule,
        frame_seconds=description["frame_seconds"],
        clip=description["clip"],
    )
