"""What is measured: the planners, and how much of each on a GPU, on a CPU and in a smoke test.

Planners are bundled teachers, and networks of the sizes that people deploy. All sample with DDIM
over every training step, clip, and write start and goal into every state. Networks with random
weights cost as much as trained ones; their deviations mean nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn_bench.networks.half import halve
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.diffuser import InpaintedDenoiser, inpaint_ends
from muninn_bench.studies.latency.results import ON_CPU
from muninn_bench.tasks.maze2d import planner as maze2d
from muninn_bench.tasks.maze2d.maze import sample_problems

Precision = Literal["fp32", "fp16"]
STEPS = 100
SEED = 20
TUNING_CALLS = 32
WIDE = (160, 320, 640, 1024)
"""Widths at which the U-Net has 63 million parameters, as the paper's."""


class InpaintedEnds:
    """:func:`~muninn_bench.planners.diffuser.inpaint_ends` as a class, to be profiled."""

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        return inpaint_ends(x, context)


@dataclass(frozen=True)
class TimedVariant:
    """An eager planner to time with its network, and the calls to time it on.

    Programs and alternatives are tuned on contexts of other calls; where weights are random there
    are none, for nothing can be tuned.
    """

    name: str
    title: str
    network: nn.Module
    planner: Planner
    contexts: Tensor  # one row per call, (calls, 2, 4)
    precision: Precision  # of the network's layers; states are float32
    tuning: Tensor | None = None
    trained: bool = False

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def batch(self, rows: int, first: int = 0) -> tuple[Tensor, Noise]:
        """Contexts and noise of some calls, the same in every run; contexts come round again."""
        numbers = range(first, first + rows)
        contexts = self.contexts[[number % len(self.contexts) for number in numbers]].contiguous()
        noise = self.planner.draw_noise(seeds=[call_seed(SEED, number) for number in numbers])
        return contexts, noise

    def call(self, number: int) -> tuple[Tensor, Noise]:
        """Context and noise of one call, batch 1."""
        return self.batch(1, number)


def teacher_variant(
    name: str, title: str, bundled: str, precision: Precision, device: torch.device, calls: int
) -> TimedVariant:
    """A bundled Maze2D teacher on fresh problems."""
    teacher = maze2d.bundled_teacher(bundled)
    network = teacher.network.to(device)
    contexts, tuning = (
        maze2d.maze_contexts(teacher, sample_problems(count, seed=seed)).to(device)
        for count, seed in ((calls, SEED), (TUNING_CALLS, SEED + 1))
    )
    if precision == "fp16":
        halve(network)
    planner = replace(maze2d.maze_planner(teacher), dtype=torch.float32, condition=InpaintedEnds())
    return TimedVariant(name, title, network, planner, contexts, precision, tuning, trained=True)


def random_variant(
    name: str,
    title: str,
    config: UnetConfig,
    horizon: int,
    precision: Precision,
    device: torch.device,
    calls: int,
    steps: int = STEPS,
) -> TimedVariant:
    """A temporal U-Net with random weights, on random starts and goals."""
    schedule = Schedule.cosine(steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = TemporalUnet(config, schedule, horizon).eval().requires_grad_(False)
        for parameter in network.parameters():
            # Training starts these weights at zero: whole branches would do nothing.
            if parameter.ndim > 1 and not parameter.any():
                nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5)
        contexts = 2.0 * torch.rand(calls, 2, maze2d.STATE_CHANNELS).to(device) - 1.0
    network = network.to(device)
    if precision == "fp16":
        halve(network)
    denoiser, sampler = InpaintedDenoiser(network), ddim(schedule, kind="sample", clip=1.0)
    shape = (horizon, config.channels)
    planner = Planner(denoiser, sampler, shape, condition=InpaintedEnds(), device=device)
    return TimedVariant(name, title, network, planner, contexts, precision)


_WIDE = (
    ("unet63m-fp16", "U-Net 63M, H=256", UnetConfig(6, WIDE, heads=8), 256),
    ("policy63m-fp16", "diffusion-policy U-Net 63M, H=16", UnetConfig(10, WIDE, heads=8), 16),
)
_TEACHERS: tuple[tuple[str, str, str, Precision], ...] = (
    ("maze2d-fp16", "U-Net 3.6M, H=256", "maze2d", "fp16"),
    ("transformer-fp16", "Transformer 3.9M, H=256", "maze2d-transformer", "fp16"),
    ("maze2d-fp32", "U-Net 3.6M, H=256", "maze2d", "fp32"),
    ("transformer-fp32", "Transformer 3.9M, H=256", "maze2d-transformer", "fp32"),
)
VARIANTS: dict[str, Callable[[torch.device, int], TimedVariant]] = {
    **{wide[0]: functools.partial(random_variant, *wide, "fp16") for wide in _WIDE},
    **{teacher[0]: functools.partial(teacher_variant, *teacher) for teacher in _TEACHERS},
}
"""By name, how each is built on a device with a number of calls; those that targets name first."""


def variant_names(device: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The planners of a run, in order.

    Raises:
        InputError: an unknown name, or one that is timed on CUDA devices only.
    """
    offered = tuple(VARIANTS) if device == "cuda" else ON_CPU
    unknown = [name for name in wanted or () if name not in offered]
    if unknown:
        raise InputError(
            f"no subject {', '.join(unknown)} on {device}; choose from {', '.join(offered)}"
        )
    return offered if wanted is None else tuple(name for name in offered if name in wanted)


MOST_WORK = 5_000_000_000_000
"""Rows times parameters times horizon: the evaluation of 256 plans by the largest planner."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run.

    Every way takes part in every round, unless its calls are ``k`` times as long as
    ``turn_seconds``: then in every ``k``-th, so that slow baselines do not use up the time of the
    run. Graphs and compiled networks take part in all of the warm-up. Round ``i`` plans call
    ``i % calls`` in every way. Growth has every size with its base value and the values that it
    is varied to, one size at a time; ``width`` is that of the U-Net's finest level.
    """

    evaluations: int = 20  # per call, of every way that skips some
    warm_up: int = 50  # rounds, as all that are timed
    timed: int = 100
    calls: int = 20
    turn_seconds: float = 0.025
    longest_stride: int = 10
    batches: tuple[int, ...] = (16, 256, 1024)
    batch_timed: int = 10
    growth: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    growth_timed: int = 5
    compile: bool = True
    tuning: int = 32  # calls on which programs and alternatives are tuned

    def stride(self, seconds: float) -> int:
        """A way takes part in every such round, given how long one of its calls takes.

        >>> thirty = Settings(turn_seconds=0.03, longest_stride=8)
        >>> [thirty.stride(seconds) for seconds in (0.01, 0.1, 9.0)]
        [1, 3, 8]
        """
        return min(max(round(seconds / self.turn_seconds), 1), self.longest_stride)

    def batches_of(self, parameters: int, horizon: int) -> tuple[int, ...]:
        """The batches that a planner does not take minutes for.

        >>> Settings().batches_of(63_000_000, 256), Settings().batches_of(63_000_000, 16)
        ((16, 256), (16, 256, 1024))
        """
        return tuple(rows for rows in self.batches if rows * parameters * horizon <= MOST_WORK)

    def lighter(self) -> Settings:
        """For planners that no target names: fewer timed rounds, nothing compiled."""
        return replace(self, timed=min(self.timed, 60), compile=False)


_SIZES = ("horizon", "steps", "dim", "batch", "width")
_LARGE = ((128, 32, 512), (100, 25, 200), (6, 32, 128), (1, 16, 64), (32, 64, 136))
_MIDDLE = ((64, 32, 128), (50, 25, 100), (6, 32, 128), (1, 4, 16), (32, 16, 64))
_SMALL = ((16, 32), (10, 20), (6, 8), (1, 2), (8, 16))
CUDA = Settings(calls=16, growth=dict(zip(_SIZES, _LARGE, strict=True)))
CPU = Settings(
    warm_up=3,
    timed=60,
    turn_seconds=math.inf,
    batches=(16,),
    growth=dict(zip(_SIZES, _MIDDLE, strict=True)),
    growth_timed=3,
)


def sizes(device: str, smoke: bool) -> Settings:
    """The settings of a device, or of a smoke test of the whole run on it."""
    chosen = CUDA if device == "cuda" else CPU
    if not smoke:
        return chosen
    few = replace(chosen, evaluations=5, warm_up=1, timed=2, calls=2, tuning=2, compile=False)
    growth = dict(zip(_SIZES, _SMALL, strict=True))
    return replace(few, batches=(2,), batch_timed=1, growth=growth, growth_timed=1)
