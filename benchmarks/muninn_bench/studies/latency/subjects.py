"""The planners that are timed: bundled teachers, and networks of the sizes that people deploy.

All sample with DDIM over every training step, clip, and write start and goal into every state.
Networks with random weights cost what trained ones cost; their deviations mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn_bench.networks.teacher import Network
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.studies.latency.precision import halve
from muninn_bench.tasks.maze2d.maze import sample_problems
from muninn_bench.tasks.maze2d.planner import (
    STATE_CHANNELS,
    InpaintedDenoiser,
    bundled_teacher,
    inpaint_ends,
    maze_contexts,
    maze_planner,
)

Precision = Literal["fp32", "fp16"]
STEPS = 100
SEED = 20
TUNING_CALLS = 32
WIDE = (160, 320, 640, 1024)
"""Widths at which the U-Net has 63 million parameters, as the paper's."""


class InpaintedEnds:
    """:func:`muninn_bench.tasks.maze2d.planner.inpaint_ends` as a class, so that it can be profiled."""

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        return inpaint_ends(x, context)


@dataclass(frozen=True)
class Subject:
    """A planner to time, and the calls to time it on.

    Attributes:
        name, title: for options and for people.
        network: what the planner's denoiser runs.
        planner: the eager planner.
        contexts: one row per call, (calls, 2, 4).
        precision: of the network's layers; states are float32.
        trained: False where weights are random.
        tuning: contexts of other calls, on which programs and alternatives are tuned; None where
            weights are random and nothing can be.
    """

    name: str
    title: str
    network: nn.Module
    planner: Planner
    contexts: Tensor
    precision: Precision
    trained: bool
    tuning: Tensor | None = None

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def call(self, index: int) -> tuple[Tensor, Noise]:
        """Context and noise of one call, batch 1; the same in every run."""
        return self.batch(1, index)

    def batch(self, rows: int, first: int = 0) -> tuple[Tensor, Noise]:
        """Contexts and noise of ``rows`` calls; contexts are used again where there are fewer."""
        chosen = [index % len(self.contexts) for index in range(first, first + rows)]
        seeds = [call_seed(SEED, index) for index in range(first, first + rows)]
        return self.contexts[chosen].contiguous(), self.planner.draw_noise(seeds=seeds)


def teacher_subject(
    name: str, title: str, bundled: str, device: torch.device, precision: Precision, calls: int
) -> Subject:
    """A bundled Maze2D teacher on fresh problems."""
    teacher = bundled_teacher(bundled)
    network = teacher.network.to(device)
    contexts = maze_contexts(teacher, sample_problems(calls, seed=SEED))
    tuning = maze_contexts(teacher, sample_problems(TUNING_CALLS, seed=SEED + 1))
    if precision == "fp16":
        halve(network)
    return Subject(
        name,
        title,
        network,
        replace(maze_planner(teacher), dtype=torch.float32, condition=InpaintedEnds()),
        contexts.to(device),
        precision,
        trained=True,
        tuning=tuning.to(device),
    )


def random_subject(
    name: str,
    title: str,
    config: UnetConfig,
    horizon: int,
    device: torch.device,
    precision: Precision,
    calls: int,
    steps: int = STEPS,
) -> Subject:
    """A temporal U-Net with random weights, on random starts and goals."""
    schedule = Schedule.cosine(steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = TemporalUnet(config, schedule, horizon).eval().requires_grad_(False)
        _fill_zeros(network)
        contexts = 2.0 * torch.rand(calls, 2, STATE_CHANNELS) - 1.0
    network = network.to(device)
    if precision == "fp16":
        halve(network)
    planner = Planner(
        denoiser=InpaintedDenoiser(network),
        sampler=ddim(schedule, kind="sample", clip=1.0),
        shape=(horizon, config.channels),
        condition=InpaintedEnds(),
        device=device,
    )
    return Subject(name, title, network, planner, contexts.to(device), precision, trained=False)


def _fill_zeros(network: Network) -> None:
    """Draw the weights that training starts at zero: else whole branches would do nothing."""
    for parameter in network.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5)


Builder = Callable[[torch.device, int], Subject]


def _teacher(name: str, title: str, bundled: str, precision: Precision) -> Builder:
    return lambda device, calls: teacher_subject(name, title, bundled, device, precision, calls)


def _wide(name: str, title: str, horizon: int, dim: int) -> Builder:
    config = UnetConfig(channels=dim, widths=WIDE, heads=8)
    return lambda device, calls: random_subject(name, title, config, horizon, device, "fp16", calls)


BUILDERS: dict[str, Builder] = {
    "unet63m-fp16": _wide("unet63m-fp16", "U-Net 63M, H=256", 256, 6),
    "policy63m-fp16": _wide("policy63m-fp16", "diffusion-policy U-Net 63M, H=16", 16, 10),
    "maze2d-fp16": _teacher("maze2d-fp16", "U-Net 3.6M, H=256", "maze2d", "fp16"),
    "transformer-fp16": _teacher(
        "transformer-fp16", "Transformer 3.9M, H=256", "maze2d-transformer", "fp16"
    ),
    "maze2d-fp32": _teacher("maze2d-fp32", "U-Net 3.6M, H=256", "maze2d", "fp32"),
    "transformer-fp32": _teacher(
        "transformer-fp32", "Transformer 3.9M, H=256", "maze2d-transformer", "fp32"
    ),
}
"""Those that the targets name first."""

ON_CPU = ("maze2d-fp32", "transformer-fp32")


def subject_names(device: str, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The subjects of a run, in order.

    Raises:
        InputError: an unknown name, or one that is timed on CUDA devices only.
    """
    offered = tuple(BUILDERS) if device == "cuda" else ON_CPU
    unknown = [name for name in wanted or () if name not in offered]
    if unknown:
        raise InputError(
            f"no subject {', '.join(unknown)} on {device}; choose from {', '.join(offered)}"
        )
    return offered if wanted is None else tuple(name for name in offered if name in wanted)
