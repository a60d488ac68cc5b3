"""Every way to make a plan that is timed: full compute, fewer steps, the paper's gate, Muninn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.certify.cached import CachedPlanner
from muninn.context import Context, copy_into, form, select
from muninn.engines.capture import capture
from muninn.engines.choose import runtime_for
from muninn.engines.compiled import CompiledDenoiser
from muninn.engines.layout import channels_last
from muninn.model.planner import Engine as PlannerEngine
from muninn.model.planner import Noise, Planner
from muninn.programs.plan import Program, Static
from muninn.record import Record
from muninn_bench.measure.alternatives import FEWSTEPS
from muninn_bench.measure.protocol import Run, fixed_cost, plain
from muninn_bench.measure.uncalibrated import uncalibrated
from muninn_bench.studies.latency.programs import TunedPrograms

Engine = Literal["eager", "compiled", "graph", "compiled graph"]

FULL_EAGER, FULL_GRAPH = "full-eager", "full-graph"
STATIC_EAGER, STATIC_GRAPH = "static-eager", "static-graph"
GATED_EAGER, GATED_GRAPH = "gated-eager", "gated-graph"
OWN_EAGER, OWN_GRAPH = "gated-own-eager", "gated-own-graph"
NETWORK_EAGER, NETWORK_GRAPH = "network-eager", "network-graph"

_TITLES = {
    "full": "Full",
    "few": "FewSteps {count}",
    "dpm": "DPM-Solver++ {count}",
    "paper": "the paper's gate",
    "static": "Muninn static",
    "gated": "Muninn gated",
    "gated-own": "Muninn gated, own threshold",
    "network": "{count} evaluations alone",
}
_ALTERNATIVES = {"few": FEWSTEPS, "dpm": "dpmsolver"}
_PROGRAMS: dict[str, Callable[[TunedPrograms], Program]] = {
    "static": lambda programs: programs.static,
    "gated": lambda programs: programs.gated,
    "gated-own": lambda programs: programs.gated_own,
}
"""Timed with the checks that a certificate makes at every call."""

_ENGINES: dict[str, PlannerEngine] = {
    "eager": "eager",
    "compiled": "compile",
    "graph": "graph",
    "compiled-graph": "compile",
    "last": "compile",
}
_COMPILED = ("full", "few", "dpm", "static")
ON_CPU: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("eager", ("full", "few", "dpm", "paper", "static", "gated", "gated-own")),
    ("compiled", _COMPILED),
    ("last", _COMPILED),
    ("eager", ("network",)),
)
"""What runs on what, in the order of the tables; ``last`` is compiled, and stored channels last."""

ON_CUDA: tuple[tuple[str, tuple[str, ...]], ...] = (
    # A graph covers few steps and DPM-Solver++, at the speed of the hardware.
    ("eager", ("full", "paper", "static", "gated", "gated-own")),
    ("compiled", ("full",)),
    ("graph", ("full", "few", "dpm", "static", "gated", "gated-own", "network")),
    ("compiled-graph", _COMPILED),
    ("last", _COMPILED),
)
EVERY = tuple(dict.fromkeys(f"{what}-{on}" for on, whats in (*ON_CPU, *ON_CUDA) for what in whats))
"""Names of all ways; which of them are offered depends on device and planner."""


@dataclass(frozen=True)
class Way:
    """A way to make plans.

    Attributes:
        name, title: for options and for people.
        engine: what runs it.
        make: prepares it; its first call may still compile or capture.
    """

    name: str
    title: str
    engine: Engine
    make: Callable[[], Run]

    @property
    def plans(self) -> bool:
        """False for the evaluations alone, whose result is no plan."""
        return self.name not in (NETWORK_EAGER, NETWORK_GRAPH)


class GraphedSample:
    """A sampling function of one shape as one CUDA graph: captured at the first call."""

    def __init__(self, planner: Planner, sample: Callable[..., Tensor]) -> None:
        self._planner = planner
        self._sample = sample
        self._captured: tuple[Any, Tensor, Context, Noise] | None = None

    @torch.no_grad()
    def __call__(self, context: Context, *, noise: Noise) -> Tensor:
        """The function's result, the caller's own copy."""
        if self._captured is None:
            rows = torch.arange(len(noise.initial), device=noise.initial.device)
            inputs, buffers = select(context, rows), noise.select(rows)
            graph, result = capture(
                lambda: self._sample(inputs, noise=buffers), self._planner.device
            )
            self._captured = graph, result, inputs, buffers
        graph, result, inputs, buffers = self._captured
        copy_into(inputs, context)
        buffers.initial.copy_(noise.initial, non_blocking=True)
        graph.replay()
        return result.clone()


def as_run(planner: Callable[..., tuple[Tensor, Record]]) -> Run:
    """A runtime or a cached planner as it is timed."""
    return lambda context, noise: planner(context, noise=noise)


def run_program(planner: Planner, program: Program, engine: PlannerEngine) -> Run:
    """A program on an engine; one that fails says so instead of planning with full compute."""
    return as_run(runtime_for(replace(planner, engine=engine), program, on_failure="error"))


def network_alone(planner: Planner, program: Program) -> Callable[..., Tensor]:
    """The evaluations of a static program and nothing else: they cannot be saved."""
    plan = program.plan
    assert isinstance(plan, Static)  # the only kind that knows its evaluations beforehand

    @torch.no_grad()
    def sample(context: Context, *, noise: Noise) -> Tensor:
        x = noise.initial
        for step in plan.anchors:
            x = planner.denoiser(noise.initial, planner.timestep(step, len(x)), context)
        return x

    return sample


def ways_for(programs: TunedPrograms, *, graphed: bool, compiled: bool) -> list[Way]:
    """All ways of a planner, Full eager first: with CUDA graphs or without, compiled or not.

    Few steps and DPM-Solver++ run on every engine that the static plan runs on.
    """

    @functools.cache
    def stored_last() -> Planner:
        network = channels_last(programs.variant.network)
        denoiser = replace(programs.planner.denoiser, network=network)  # type: ignore[type-var]
        return replace(programs.planner, denoiser=denoiser)

    def make(what: str, on: str) -> Run:
        planner = stored_last() if on == "last" else programs.planner
        engine = _ENGINES[on]
        if what == "paper":
            return as_run(programs.paper)
        if what in _PROGRAMS:
            planner = replace(planner, engine=engine)
            certificate = uncalibrated(planner, _PROGRAMS[what](programs))
            told = form(programs.variant.call(0)[0])
            return as_run(CachedPlanner(planner, replace(certificate, form=told), "error"))
        if what == "full" and on not in ("eager", "compiled"):
            return run_program(planner, programs.full, engine)
        if engine == "compile":
            if what == "full":  # guards of earlier networks count towards a limit
                torch.compiler.reset()
            planner = replace(planner, denoiser=CompiledDenoiser(planner.denoiser))
        if what == "full":
            return plain(planner)
        if what == "network":
            sample, count = network_alone(planner, programs.static), programs.count
        else:
            alternative = programs.alternative(_ALTERNATIVES[what])
            sample, count = alternative.sample(planner), alternative.evaluations
        return fixed_cost(GraphedSample(planner, sample) if graphed else sample, count)

    compiled_label: Engine = "compiled graph" if graphed else "compiled"
    labels: dict[str, Engine] = {"eager": "eager", "compiled": "compiled", "graph": "graph"}
    ways = []
    for on, whats in ON_CUDA if graphed else ON_CPU:
        for what in whats:
            title = _TITLES[what].format(count=programs.count) + ", channels last" * (on == "last")
            label = labels.get(on, compiled_label)
            ways.append(Way(f"{what}-{on}", title, label, functools.partial(make, what, on)))
    # Random weights make all calls alike: nothing for a gate to adapt to.
    left_out = () if programs.variant.trained else (OWN_EAGER, OWN_GRAPH)
    return [
        way
        for way in ways
        if way.name not in left_out and (compiled or "compiled" not in way.engine)
    ]
