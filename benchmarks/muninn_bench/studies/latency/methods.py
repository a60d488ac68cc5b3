"""Every way to make a plan that is timed: full compute, fewer steps, the paper's gate, Muninn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.context import Context, copy_into, form, select
from muninn.engines.capture import capture
from muninn.engines.choose import runtime_for
from muninn.engines.compiled import CompiledDenoiser
from muninn.engines.layout import channels_last
from muninn.errors import InputError
from muninn.identity.arithmetic import arithmetic
from muninn.identity.snapshot import Snapshot
from muninn.identity.watch import Watch
from muninn.model.planner import Engine as PlannerEngine
from muninn.model.planner import Noise, Planner
from muninn.programs.plan import Program, Static
from muninn.record import Record
from muninn_bench.measure.alternatives import FEWSTEPS, Alternative
from muninn_bench.measure.protocol import Run, fixed_cost, plain
from muninn_bench.studies.latency.programs import Programs

Engine = Literal["eager", "compiled", "graph", "compiled graph"]

FULL_EAGER, FULL_GRAPH = "full-eager", "full-graph"
STATIC_EAGER, STATIC_GRAPH = "static-eager", "static-graph"
GATED_EAGER, GATED_GRAPH = "gated-eager", "gated-graph"
OWN_EAGER, OWN_GRAPH = "gated-own-eager", "gated-own-graph"
NETWORK_EAGER, NETWORK_GRAPH = "network-eager", "network-graph"

EVERY = (
    FULL_EAGER,
    "few-eager",
    "dpm-eager",
    "paper-eager",
    STATIC_EAGER,
    GATED_EAGER,
    OWN_EAGER,
    "full-compiled",
    "few-compiled",
    "dpm-compiled",
    "static-compiled",
    NETWORK_EAGER,
    FULL_GRAPH,
    "few-graph",
    "dpm-graph",
    STATIC_GRAPH,
    GATED_GRAPH,
    OWN_GRAPH,
    NETWORK_GRAPH,
    "full-compiled-graph",
    "few-compiled-graph",
    "dpm-compiled-graph",
    "static-compiled-graph",
    "full-last",
    "few-last",
    "dpm-last",
    "static-last",
)
"""Names of all methods; which of them are offered depends on device and subject."""


_OWN = "Muninn gated, own threshold"


@dataclass(frozen=True)
class Method:
    """A way to make plans.

    Attributes:
        name, title: for options and for people.
        engine: what runs it.
        make: prepares it; its first call may still compile or capture.
        plans: False for the evaluations alone, whose result is no plan.
    """

    name: str
    title: str
    engine: Engine
    make: Callable[[], Run]
    plans: bool = True


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


def run_program(planner: Planner, program: Program, engine: PlannerEngine) -> Run:
    """A program on an engine; one that fails says so instead of planning with full compute."""
    runtime = runtime_for(replace(planner, engine=engine), program, on_failure="error")
    return lambda context, noise: runtime(context, noise=noise)


def run_certified(planner: Planner, program: Program, engine: PlannerEngine) -> Run:
    """The same with the checks that a certificate makes at every call but the first."""
    runtime = runtime_for(replace(planner, engine=engine), program, on_failure="error")
    was, held = arithmetic(planner.device), (planner.denoiser, planner.condition)
    watches: list[Watch] = []

    def checked(context: Any, noise: Noise) -> tuple[Tensor, Record]:
        if not watches:  # what the network rewrites by itself is not watched
            before = Snapshot(*held)
            found = runtime(context, noise=noise)
            watches.append(Watch(*held, before.rewritten()))
            return found
        changes: list[Any] = []
        same = arithmetic(planner.device) == was and form(context)
        since = watches[0].mark()
        found = runtime(
            context, noise=noise, meanwhile=lambda: changes.append(watches[0].change(since))
        )
        if not same or changes[0]() is not None:
            raise InputError("the network or the arithmetic changed while it was timed")
        return found

    return checked


def compiled_denoiser(planner: Planner) -> Planner:
    """The planner with its network compiled, for samplers that are not programs."""
    # Guards of earlier subjects' networks would count towards the limit on recompilations.
    torch.compiler.reset()
    return replace(planner, denoiser=CompiledDenoiser(planner.denoiser))


def run_alternative(
    planner: Planner, alternative: Alternative, engine: PlannerEngine, graphed: bool
) -> Run:
    """An alternative on an engine: compiled or not, and on a GPU in one CUDA graph."""
    used = planner
    if engine == "compile":
        used = replace(planner, denoiser=CompiledDenoiser(planner.denoiser))
    sample = alternative.sample(used)
    if graphed and engine != "eager":
        sample = GraphedSample(used, sample)
    return fixed_cost(sample, alternative.evaluations)


def network_alone(planner: Planner, program: Program) -> Callable[..., Tensor]:
    """The evaluations of a static program and nothing else: what cannot be saved."""
    if not isinstance(program.plan, Static):
        raise InputError("only a static plan says beforehand which steps it evaluates")
    anchors = program.plan.anchors

    @torch.no_grad()
    def sample(context: Context, *, noise: Noise) -> Tensor:
        x = noise.initial
        for step in anchors:
            x = planner.denoiser(noise.initial, planner.timestep(step, len(x)), context)
        return x

    return sample


def methods_for(programs: Programs, *, graphed: bool, compiled: bool) -> list[Method]:
    """All methods of a subject, Full eager first.

    Fewer steps and DPM-Solver++ run on every engine that the static plan runs on.

    Args:
        programs: what runs.
        graphed: whether CUDA graphs can be had.
        compiled: whether to compile.
    """
    planner, count = programs.planner, programs.count

    @functools.cache
    def stored_last() -> Planner:
        network = channels_last(programs.subject.network)
        denoiser = replace(planner.denoiser, network=network)  # type: ignore[type-var]
        return replace(planner, denoiser=denoiser)

    def run(program: str, engine: PlannerEngine, last: bool = False) -> Run:
        deploy = run_program if program == "full" else run_certified
        return deploy(stored_last() if last else planner, getattr(programs, program), engine)

    def other(name: str, engine: PlannerEngine, last: bool = False) -> Run:
        return run_alternative(
            stored_last() if last else planner, programs.alternative(name), engine, graphed
        )

    def paper() -> Run:
        gate = programs.paper
        return lambda context, noise: gate(context, noise=noise)

    def alone() -> Run:
        sample = network_alone(planner, programs.static)
        return fixed_cost(GraphedSample(planner, sample) if graphed else sample, count)

    few, dpm, static = f"FewSteps {count}", f"DPM-Solver++ {count}", "Muninn static"
    after = "channels last"

    def compiled_as(engine: Engine, suffix: str, full: Callable[[], Run]) -> list[Method]:
        """What is compiled, and what is stored channels last too."""
        made = functools.partial
        return [
            Method(f"full-{suffix}", "Full", engine, full),
            Method(f"few-{suffix}", few, engine, made(other, FEWSTEPS, "compile")),
            Method(f"dpm-{suffix}", dpm, engine, made(other, "dpmsolver", "compile")),
            Method(f"static-{suffix}", static, engine, made(run, "static", "compile")),
            Method("full-last", f"Full, {after}", engine, made(run, "full", "compile", True)),
            Method("few-last", f"{few}, {after}", engine, made(other, FEWSTEPS, "compile", True)),
            Method(
                "dpm-last", f"{dpm}, {after}", engine, made(other, "dpmsolver", "compile", True)
            ),
            Method(
                "static-last", f"{static}, {after}", engine, made(run, "static", "compile", True)
            ),
        ]

    eager = [
        Method(FULL_EAGER, "Full", "eager", lambda: plain(planner)),
        Method("few-eager", few, "eager", lambda: other(FEWSTEPS, "eager")),
        Method("dpm-eager", dpm, "eager", lambda: other("dpmsolver", "eager")),
        Method("paper-eager", "the paper's gate", "eager", paper),
        Method(STATIC_EAGER, static, "eager", lambda: run("static", "eager")),
        Method(GATED_EAGER, "Muninn gated", "eager", lambda: run("gated", "eager")),
        Method(OWN_EAGER, _OWN, "eager", lambda: run("gated_own", "eager")),
    ]
    compile_eager = compiled_as("compiled", "compiled", lambda: plain(compiled_denoiser(planner)))
    if not graphed:
        last = Method(NETWORK_EAGER, f"{count} evaluations alone", "eager", alone, False)
        return _offered([*eager, *(compile_eager if compiled else []), last], programs)
    in_graph = [
        Method(FULL_GRAPH, "Full", "graph", lambda: run("full", "graph")),
        Method("few-graph", few, "graph", lambda: other(FEWSTEPS, "graph")),
        Method("dpm-graph", dpm, "graph", lambda: other("dpmsolver", "graph")),
        Method(STATIC_GRAPH, static, "graph", lambda: run("static", "graph")),
        Method(GATED_GRAPH, "Muninn gated", "graph", lambda: run("gated", "graph")),
        Method(OWN_GRAPH, _OWN, "graph", lambda: run("gated_own", "graph")),
        Method(NETWORK_GRAPH, f"{count} evaluations alone", "graph", alone, False),
    ]
    compile_graph = compiled_as("compiled graph", "compiled-graph", lambda: run("full", "compile"))
    # The graph covers what these two do, at the speed of the hardware.
    covered = ("few-eager", "dpm-eager")
    every = [
        *(method for method in eager if method.name not in covered),
        *(compile_eager[:1] if compiled else []),
        *in_graph,
        *(compile_graph if compiled else []),
    ]
    return _offered(every, programs)


def _offered(methods: list[Method], programs: Programs) -> list[Method]:
    """Without a gate that adapts to calls, where random weights make all calls alike."""
    own = () if programs.subject.trained else (OWN_EAGER, OWN_GRAPH)
    return [method for method in methods if method.name not in own]
