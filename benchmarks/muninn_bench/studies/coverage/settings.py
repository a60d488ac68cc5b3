"""What the coverage study calibrates: samplers, units, families, and their draws.

A setting draws units (calls or closed-loop episodes) in bulk and measures each under every member
of its family, paired with full compute. Calls are laid out as one row of the planner, so the real
runtime computes them without bookkeeping per call; the plans are static, so nothing in a call
depends on its neighbours. Frontiers have no frozen family: every trial tunes one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from muninn.certify.calibrate import split_units
from muninn.certify.metrics import rms_step
from muninn.certify.units import UnitName
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family, Plan, Static
from muninn_bench.studies.coverage.mixture import DIM, HORIZON, STEPS, Layout, mixture_planner

SIZES = (40, 100, 400)
RISKS = (0.02, 0.05, 0.1, 0.2)
CONFIDENCE = 0.95
EPISODE_CALLS = 3
TRIAL_RISK = 0.1  # of a trial through the public verbs
_EXECUTED = 4  # steps of a plan that are executed before planning again


@dataclass(frozen=True)
class Options:
    """How much is run."""

    repetitions: int = 500  # calibrate-then-deploy, of each setting
    fresh: int = 5000  # new units on which each repetition measures its realised risk
    trials: int = 90  # through the public verbs; the slow closed-loop ones run a third
    tuned: int = 200  # such trials of each frontier
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.repetitions, self.fresh, self.trials, self.tuned) < 2 or self.seed < 0:
            raise InputError(
                "coverage needs at least 2 repetitions, 2 fresh units, 2 trials of either kind and "
                f"a seed of at least 0; got {self}"
            )


SMOKE = Options(repetitions=30, fresh=1000, trials=6, tuned=2)


@dataclass(frozen=True)
class Setting:
    """One world of the study."""

    name: str
    sampler: Literal["ddim", "ddpm"]
    unit: UnitName  # an episode is closed loop, the worst of three calls
    tolerance: float  # rms per time step
    order: int = 0  # of the forecast, in x0, with look-back
    anchors: tuple[tuple[int, ...], ...] = ()  # of members after full compute, conservative first
    adaptive: bool = False  # instead of static; bulk draws cannot run it
    layout: Layout = "four"  # of the routes; all but four are drawn by every trial
    steps: int = STEPS
    units: int = 118  # of a trial through the public verbs

    @property
    def calls(self) -> int:
        """Calls of one unit."""
        return EPISODE_CALLS if self.unit == "episode" else 1

    @property
    def tuned(self) -> bool:
        """Whether every trial tunes a family of its own."""
        return not (self.anchors or self.adaptive)

    def split(self, seed: int) -> dict[str, list[int]]:
        """What the units of a trial serve: tuning, certifying, the per-call bound."""
        return split_units(self.units, TRIAL_RISK, CONFIDENCE, tune=self.tuned, seed=seed)

    @property
    def family(self) -> Family:
        """The frozen family, full compute first."""
        plans: list[Plan] = [Static(anchors) for anchors in self.anchors]
        if self.adaptive:
            plans = [Adaptive(threshold, dense=2) for threshold in _THRESHOLDS]
        name = "adaptive" if self.adaptive else "static"
        return Family.of(Forecast("sample", self.order), (Everywhere(), *plans), name)

    def planner(self, calls_per_row: int | None = None, seed: int = 0) -> Planner:
        """The planner, for single calls or for many calls in a row; ``seed`` may draw routes."""
        drawn: dict[str, Any] = {"layout": self.layout, "seed": seed, "steps": self.steps}
        return mixture_planner(self.sampler, calls_per_row, **drawn)


_DDIM_ANCHORS = (
    (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 19),
    (0, 1, 2, 5, 8, 11, 14, 17, 19),
    (0, 5, 8, 11, 13, 15, 17, 19),
    (0, 1, 5, 9, 13, 17, 19),
    (0, 4, 8, 12, 16, 19),
    (0, 8, 12, 16, 19),
    (0, 8, 16, 19),
    (0, 9, 15, 19),
)
_DDPM_ANCHORS = (
    (*range(18), 19),
    (*range(17), 19),
    (*range(16), 18, 19),
    (*range(13), 14, 16, 18, 19),
    (*range(7), 8, 10, 12, 14, 16, 18, 19),
    (0, 2, 5, 7, 10, 12, 14, 17, 19),
    (0, 3, 6, 10, 13, 16, 19),
    (0, 7, 13, 19),
)
_THRESHOLDS = (0.006, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
# Tolerances were set on other draws, so that the risks of each family cross every alpha.
SETTINGS = (
    Setting("ddim-call", "ddim", "call", 0.049, 1, _DDIM_ANCHORS),
    Setting("ddpm-call", "ddpm", "call", 0.38, 0, _DDPM_ANCHORS),
    Setting("ddim-episode", "ddim", "episode", 0.064, 1, _DDIM_ANCHORS),
)
_TUNED: dict[str, Any] = {"steps": 24, "units": 194}
FRONTIERS = (
    Setting("ddim-frontier-one", "ddim", "call", 0.002, layout="one", **_TUNED),
    Setting("ddim-frontier-two", "ddim", "call", 0.01, layout="two", **_TUNED),
    Setting("ddpm-frontier-one", "ddpm", "call", 0.03, layout="one", **_TUNED),
    Setting("ddpm-frontier-two", "ddpm", "call", 0.3, layout="two", **_TUNED),
)
_ADAPTIVE = replace(SETTINGS[0], name="ddim-call-adaptive", adaptive=True)
TRIALS = (*SETTINGS, _ADAPTIVE, *FRONTIERS)
"""What goes through the public verbs."""


def start_contexts(count: int, generator: torch.Generator) -> Tensor:
    """Where calls or episodes begin, (count, 2)."""
    return 0.5 * torch.randn(count, DIM, generator=generator)


def next_contexts(context: Tensor, trajectory: Tensor) -> Tensor:
    """Where an episode stands after executing the first steps of its plan, (..., 2)."""
    return 0.6 * context + 0.6 * trajectory[..., _EXECUTED, :]


class Laboratory:
    """Measures blocks of ``units`` units of a setting under all members of its family."""

    def __init__(self, setting: Setting, units: int) -> None:
        self.setting, self.units = setting, units
        self.planner = setting.planner(units)
        family = setting.family
        self._members = [Runtime(self.planner, family.member(k)) for k in range(1, len(family))]

    def draw(self, generator: torch.Generator) -> FloatArray:
        """Excess (units, members) of fresh units."""
        starts = start_contexts(self.units, generator)
        calls = range(self.setting.calls)
        return self.excess(starts, [self.planner.draw_noise(1, generator=generator) for _ in calls])

    def excess(self, starts: Tensor, noises: Sequence[Noise]) -> FloatArray:
        """Worst deviation over tolerance (units, members), member 0 being full compute.

        Of units that start at contexts (units, 2), with noises of their calls in turn.
        """
        excess = np.zeros((self.units, len(self._members) + 1))
        noises = [_block(noise) for noise in noises]
        full = self.planner.sample(starts[None], noise=noises[0])
        for member, runtime in enumerate(self._members, start=1):
            context, truth, worst = starts[None], full, excess[:, member]
            for call, noise in enumerate(noises):
                if call:
                    truth = self.planner.sample(context, noise=noise)
                trajectory, _ = runtime(context, noise=noise)
                np.maximum(worst, rms_step(truth[0], trajectory[0]).numpy(), out=worst)
                context = next_contexts(context, trajectory)
        return excess / self.setting.tolerance


def _block(noise: Noise) -> Noise:
    shape = (1, -1, HORIZON, DIM)
    steps = {step: draw.view(shape) for step, draw in noise.steps.items()}
    return Noise(noise.initial.view(shape), steps)
