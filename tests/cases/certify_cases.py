"""A planner, a frozen family and a closed-loop world that the tests of certification share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.tune import tune_family
from muninn.certify.units import Outcome, PlanFunction
from muninn.model.denoiser import ClassifierFreeGuidance
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray, Schedule
from muninn.model.solvers import ddim
from muninn.programs.caches import forecast as forecast_table
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Program, Static
from muninn.programs.spacing import sampler_states, spread_steps
from muninn_bench.studies.coverage.mixture import mixture_planner
from muninn_bench.studies.coverage.settings import SETTINGS, Setting, next_contexts, start_contexts

SETTING: Setting = SETTINGS[0]
TOLERANCE = SETTING.tolerance
FAMILY: Family = SETTING.family
STEPS = 20
SHORT_FAMILY = Family.of(  # for six steps, where episodes are driven one call at a time
    Forecast("sample", 0, False),
    (Everywhere(), Static((0, 1, 2, 4, 5)), Static((0, 2, 5)), Static((0, 5))),
    "static",
)


def table_family(sampler: Sampler, counts: Sequence[int]) -> Family:
    """Full compute, then tables of a forecast with so many evaluations, evenly spaced."""
    states = sampler_states(sampler)
    tables = [
        forecast_table(sampler, [states[step] for step in spread_steps(len(states), count)])
        for count in counts
    ]
    return Family((Program.full(sampler.kind), *tables), "tables")


def planner(sampler: str = "ddim") -> Planner:
    return mixture_planner(sampler)


def contexts(count: int, seed: int = 0) -> Tensor:
    return start_contexts(count, torch.Generator().manual_seed(seed))


def certificate(**changes: Any) -> Certificate:
    """A small certificate with the frozen family; arguments of ``calibrate`` may be changed."""
    calls = changes.pop("calls", contexts(72))
    settings: dict[str, Any] = {
        "tolerance": TOLERANCE, "risk": 0.1, "family": FAMILY, "batch_size": 64, "progress": False,
    }  # fmt: skip
    return calibrate(changes.pop("planner", planner()), calls, **{**settings, **changes})


def adopted(issued: Certificate, own: Planner) -> Certificate:
    """The certificate as if it had been made for another planner; its figures mean nothing then."""
    return replace(issued, identity=own.identity(), questions=None, form=None)


def drive(plan: PlanFunction, seed: int) -> None:
    """Two calls; the second context depends on the first plan."""
    context = contexts(1, seed)
    for _ in range(2):
        context = next_contexts(context, plan(context))


class GivenUnits:
    """Toy units whose excess under each member is given, (units, members)."""

    loop = "open"

    def __init__(self, excess: FloatArray, family: Family, chunk: int) -> None:
        self.count = len(excess)
        self.chunk = chunk
        self.known: dict[int, Tensor] = {}
        self.measured: list[tuple[int, int]] = []
        self._excess = excess
        self._programs = [family.member(member) for member in range(len(family))]

    def measure(self, program: Program, units: Sequence[int]) -> list[Outcome]:
        member = self._programs.index(program)
        self.measured += [(member, unit) for unit in units]
        return [
            Outcome([float(self._excess[unit, member])], [1.0], [float(member)], [STEPS - member])
            for unit in units
        ]

    def full_of(self, units: Sequence[int]) -> dict[int, Tensor]:
        return {}

    def identity(self) -> dict[str, Any]:
        return {"count": self.count}

    def for_tuning(self, units: Sequence[int]) -> PairedCalls:
        raise AssertionError("a frozen family is not tuned")


class Interrupting(torch.nn.Module):
    """A denoiser stopped by Ctrl-C at its ``left``-th evaluation from now; 0 is never."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.left = 0
        self.evaluations = 0
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        self.evaluations += 1
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        result: Tensor = self.inner(x, timestep, context)
        return result


def uniform_tolerated(units: int, members: int, generator: np.random.Generator) -> FloatArray:
    """Excess of units that tolerate a uniformly drawn number of members."""
    tolerates = generator.integers(0, members, size=units)
    return np.where(np.arange(members)[None] > tolerates[:, None], 2.0, 0.5)


# -- planners that a certificate is not for -----------------------------------------------------


def other_weights(own: Planner) -> Planner:
    changed = planner()
    with torch.no_grad():
        changed.denoiser.means[0, 0] += 1e-7  # type: ignore[attr-defined]
    return changed


def drop(context: Tensor) -> Tensor:
    return torch.zeros_like(context)


def guided(own: Planner, scale: float) -> Planner:
    return replace(own, denoiser=ClassifierFreeGuidance(own.denoiser, drop, scale))


def pin(x: Tensor, context: Tensor) -> Tensor:
    return x


CHANGES: dict[str, Callable[[Planner], Planner]] = {
    "model.weights": other_weights,
    "sampler.steps": lambda own: replace(own, sampler=ddim(Schedule.cosine(20), 10, kind="sample")),
    "sampler.clip": lambda own: replace(
        own, sampler=ddim(Schedule.cosine(20), kind="sample", clip=1.0)
    ),
    "sampler.eta": lambda own: replace(
        own, sampler=ddim(Schedule.cosine(20), kind="sample", eta=0.5)
    ),
    "sampler.schedule_digest": lambda own: replace(
        own, sampler=ddim(Schedule.linear(20, end=0.3), kind="sample")
    ),
    "sampler.kind": lambda own: replace(own, sampler=ddim(Schedule.cosine(20), kind="v")),
    "sampler.name": lambda own: planner("ddpm"),
    "dtype": lambda own: replace(own, dtype=torch.float64),
    "model.guidance": lambda own: guided(own, 1.5),
    "shape": lambda own: replace(own, shape=(16, 2)),
    "condition": lambda own: replace(own, condition=pin),
}


# -- tuning -------------------------------------------------------------------------------------

TUNE_CALLS, TUNE_STEPS = 40, 12


def quiet(description: str, total: int | None) -> Any:
    return lambda steps: None


def paired_calls(sampler: str = "ddim", count: int = TUNE_CALLS, **changes: Any) -> PairedCalls:
    own = mixture_planner(sampler, steps=changes.pop("steps", TUNE_STEPS))
    own = replace(own, **changes)
    return PairedCalls(own, contexts(count), count, rms_step, 1)


def tuned(
    paired: PairedCalls | None = None,
    journal: Journal | None = None,
    *,
    tolerance: float = 0.1,
    share: float = 0.1,
    **more: Any,
) -> Family:
    paired = paired_calls() if paired is None else paired
    settings = {"objective": "evaluations", "journal": journal or Journal(), "task": quiet, **more}
    return tune_family(paired, tolerance, share, **settings)
