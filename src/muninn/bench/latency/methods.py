"""Every way to make a plan that is timed: full compute, fewer steps, the paper's gate, Muninn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.arithmetic import arithmetic
from muninn.bench.baselines import few_steps
from muninn.bench.latency.programs import Programs
from muninn.bench.multistep import MultistepPlanner
from muninn.bench.protocol import Run, fixed_cost, plain
from muninn.capture import capture
from muninn.compiled import CompiledDenoiser
from muninn.context import Context, copy_into, select
from muninn.engines import runtime_for
from muninn.errors import InputError
from muninn.layout import channels_last
from muninn.plan import Program, Static
from muninn.planner import Engine as PlannerEngine
from muninn.planner import Noise, Planner
from muninn.record import Record
from muninn.weights import Weights

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
    "static-compiled-graph",
    "full-last",
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
    """The same as a certificate lets it run: every call first looks for what would void that."""
    run, weights = run_program(planner, program, engine), Weights(planner.denoiser)
    was = arithmetic(planner.device)

    def checked(context: Any, noise: Noise) -> tuple[Tensor, Record]:
        if arithmetic(planner.device) != was or not weights.unchanged():
            raise InputError("the network or the arithmetic changed while it was timed")
        return run(context, noise)

    return checked


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

    Args:
        programs: what runs.
        graphed: whether CUDA graphs can be had.
        compiled: whether to compile.
    """
    planner, count = programs.planner, programs.count

    def compiled_planner() -> Planner:
        # Guards of earlier subjects' networks would count towards the limit on recompilations.
        torch.compiler.reset()
        return replace(planner, denoiser=CompiledDenoiser(planner.denoiser))

    def run(program: str, engine: PlannerEngine, planner: Planner = planner) -> Run:
        deploy = run_program if program == "full" else run_certified
        return deploy(planner, getattr(programs, program), engine)

    def stored_last(program: str) -> Run:
        network = channels_last(programs.subject.network)
        denoiser = replace(planner.denoiser, network=network)  # type: ignore[type-var]
        return run(program, "compile", replace(planner, denoiser=denoiser))

    def solver(wrap: Callable[..., Any]) -> Run:
        multistep = MultistepPlanner(planner, programs.subject.alpha_bar, count)
        return fixed_cost(wrap(multistep.sample), count)

    def alone(wrap: Callable[..., Any]) -> Run:
        return fixed_cost(wrap(network_alone(planner, programs.static)), count)

    def paper() -> Run:
        gate = programs.paper
        return lambda context, noise: gate(context, noise=noise)

    graphed_sample = functools.partial(GraphedSample, planner)
    fewer = few_steps(planner, count)
    eager = [
        Method(FULL_EAGER, "Full", "eager", lambda: plain(planner)),
        Method("few-eager", f"FewSteps {count}", "eager", lambda: plain(fewer)),
        Method("dpm-eager", f"DPM-Solver++ {count}", "eager", lambda: solver(_same)),
        Method("paper-eager", "the paper's gate", "eager", paper),
        Method(STATIC_EAGER, "Muninn static", "eager", lambda: run("static", "eager")),
        Method(GATED_EAGER, "Muninn gated", "eager", lambda: run("gated", "eager")),
        Method(OWN_EAGER, _OWN, "eager", lambda: run("gated_own", "eager")),
    ]
    compile_eager = [
        Method("full-compiled", "Full", "compiled", lambda: plain(compiled_planner())),
        Method("static-compiled", "Muninn static", "compiled", lambda: run("static", "compile")),
    ]
    if not graphed:
        last = Method(
            NETWORK_EAGER, f"{count} evaluations alone", "eager", lambda: alone(_same), False
        )
        return _offered([*eager, *(compile_eager if compiled else []), last], programs)
    in_graph = [
        Method(FULL_GRAPH, "Full", "graph", lambda: run("full", "graph")),
        Method(
            "few-graph",
            f"FewSteps {count}",
            "graph",
            lambda: run_program(fewer, programs.full, "graph"),
        ),
        Method("dpm-graph", f"DPM-Solver++ {count}", "graph", lambda: solver(graphed_sample)),
        Method(STATIC_GRAPH, "Muninn static", "graph", lambda: run("static", "graph")),
        Method(GATED_GRAPH, "Muninn gated", "graph", lambda: run("gated", "graph")),
        Method(OWN_GRAPH, _OWN, "graph", lambda: run("gated_own", "graph")),
        Method(
            NETWORK_GRAPH,
            f"{count} evaluations alone",
            "graph",
            lambda: alone(graphed_sample),
            False,
        ),
    ]
    compile_graph = [
        Method("full-compiled-graph", "Full", "compiled graph", lambda: run("full", "compile")),
        Method(
            "static-compiled-graph",
            "Muninn static",
            "compiled graph",
            lambda: run("static", "compile"),
        ),
        Method("full-last", "Full, channels last", "compiled graph", lambda: stored_last("full")),
        Method(
            "static-last",
            "Muninn static, channels last",
            "compiled graph",
            lambda: stored_last("static"),
        ),
    ]
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


def _same(sample: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return sample
