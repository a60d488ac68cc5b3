"""Every way to make a plan that is timed: full compute, fewer steps, the paper's gate, Muninn."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from muninn.certify.cached import CachedPlanner
from muninn.context import Context, copy_into, select
from muninn.engines.capture import capture
from muninn.engines.choose import runtime_for
from muninn.engines.compiled import CompiledDenoiser
from muninn.engines.layout import channels_last
from muninn.model.planner import Engine, Noise, Planner
from muninn.programs.plan import AnyProgram
from muninn.programs.table import Table
from muninn.record import Record
from muninn_bench.measure.alternatives import FEWSTEPS
from muninn_bench.measure.protocol import Run, fixed_cost, plain
from muninn_bench.measure.uncalibrated import uncalibrated
from muninn_bench.studies.latency.programs import TunedPrograms

WAYS = {
    "full": ("Full", "eager compiled last", "eager compiled graph compiled-graph last"),
    "few": ("FewSteps {}", "eager compiled last", "graph compiled-graph last"),
    "dpm": ("DPM-Solver++ {}", "eager compiled last", "graph compiled-graph last"),
    "hand": ("DPM-Solver++ {}, by hand", "eager compiled last", "graph compiled-graph last"),
    "paper": ("the paper's gate", "eager", "eager"),
    "static": ("Muninn static", "eager compiled last", "eager graph compiled-graph last"),
    "gated": ("Muninn gated", "eager", "eager graph"),
    "gated-own": ("Muninn gated, own threshold", "eager", "eager graph"),
    "network": ("{} evaluations alone", "eager", "graph"),
}
"""What is run: its title, and its engines on a CPU and on a GPU. A graph covers few steps and
DPM-Solver++ at the speed of the hardware, so on a GPU they do not run eagerly."""

ENGINES = ("eager", "compiled", "graph", "compiled-graph", "last")
"""In the order of the tables; ``last`` is compiled, and stored channels last."""

EVERY = tuple(
    f"{what}-{on}"
    for on in ENGINES
    for what, way in WAYS.items()
    if on in " ".join(way[1:]).split()
)
"""Names of all ways; which of them are offered depends on device and planner."""


@dataclass(frozen=True)
class Way:
    """A way to make plans: ``make`` prepares it, its first call may still compile or capture."""

    name: str
    title: str
    engine: str
    make: Callable[[], Run]


def as_run(planner: Callable[..., tuple[Tensor, Record]]) -> Run:
    """A runtime or a cached planner as it is timed."""
    return lambda context, noise: planner(context, noise=noise)


def run_program(planner: Planner, program: AnyProgram, engine: Engine) -> Run:
    """A program on an engine; one that fails says so instead of planning with full compute."""
    return as_run(runtime_for(replace(planner, engine=engine), program, on_failure="error"))


def run_certified(planner: Planner, program: AnyProgram, engine: Engine, context: Context) -> Run:
    """The same with the checks that a certificate for contexts like this makes at every call."""
    planner = replace(planner, engine=engine)
    return as_run(CachedPlanner(planner, uncalibrated(planner, program, context), "error"))


def in_graph(planner: Planner, sample: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A sampling function of one shape as one CUDA graph, captured at the first call."""
    captured: tuple[Any, Tensor, Context, Noise] | None = None

    @torch.no_grad()
    def replayed(context: Context, *, noise: Noise) -> Tensor:
        nonlocal captured
        if captured is None:
            rows = torch.arange(len(noise.initial), device=noise.initial.device)
            copies = select(context, rows), noise.select(rows)
            made = capture(lambda: sample(copies[0], noise=copies[1]), planner.device)
            captured = (*made, *copies)
        graph, result, inputs, buffers = captured
        copy_into(inputs, context)
        buffers.initial.copy_(noise.initial, non_blocking=True)
        graph.replay()
        return result.clone()

    return replayed


def network_alone(planner: Planner, table: AnyProgram) -> Callable[..., Tensor]:
    """The evaluations of a table and nothing else: they cannot be saved."""
    times = _times(planner, table)

    @torch.no_grad()
    def sample(context: Context, *, noise: Noise) -> Tensor:
        x = noise.initial
        for time in times:
            x = planner.denoiser(noise.initial, time.expand(len(x)), context)
        return x

    return sample


def _times(planner: Planner, table: AnyProgram) -> list[Tensor]:
    assert isinstance(table, Table)  # the only kind that knows its evaluations beforehand
    kind = torch.float32 if planner.sampler.flow else torch.long
    return [torch.tensor([s.timestep], dtype=kind, device=planner.device) for s in table.states]


def by_hand(planner: Planner, table: Table) -> Callable[..., Tensor]:
    """DPM-Solver++ 2M (Lu et al. 2022) as one writes it by hand, at the states of a table.

    Plain torch, every coefficient computed beforehand: what any engine of ours is compared with.
    """
    sampler, times = planner.sampler, _times(planner, table)
    last = sampler.steps[-1]
    signal = [*(state.signal for state in table.states), last.next_signal]
    noise = [*(state.noise for state in table.states), last.next_noise]
    level = [math.log(a / s) if s > 0.0 else math.inf for a, s in zip(signal, noise, strict=True)]
    rows = []
    for at, state in enumerate(table.states):
        share = 0.0  # of the slope; the first step and the last are of first order
        if 0 < at < len(times) - 1:
            share = 0.5 * (level[at + 1] - level[at]) / (level[at] - level[at - 1])
        carry = noise[at + 1] / noise[at]
        gain = signal[at + 1] - carry * signal[at]
        rows.append((*sampler.estimates(state)[0], share, carry, gain))

    @torch.no_grad()
    def sample(context: Context, *, noise: Noise) -> Tensor:
        x = planner.start(noise, context)
        before = x
        for time, (of_state, of_output, share, carry, gain) in zip(times, rows, strict=True):
            output = planner.denoiser(x, time.expand(len(x)), context)
            clean = output if of_state == 0.0 else of_state * x + of_output * output
            if sampler.clip is not None:
                clean = clean.clamp(-sampler.clip, sampler.clip)
            ahead = clean if share == 0.0 else torch.lerp(before, clean, 1.0 + share)
            x, before = carry * x + gain * ahead, clean
            if planner.condition is not None:
                x = planner.condition(x, context)
        return x

    return sample


def ways_for(programs: TunedPrograms, *, graphed: bool, compiled: bool) -> list[Way]:
    """All ways of a planner, Full eager first: in CUDA graphs or not, compiled or not.

    Few steps and DPM-Solver++ run on every engine that the static table runs on; ``hand`` is a loop
    without any, in one CUDA graph where there are graphs.
    """

    @functools.cache
    def stored_last() -> Planner:
        network = channels_last(programs.variant.network)
        denoiser = replace(programs.planner.denoiser, network=network)  # type: ignore[type-var]
        return replace(programs.planner, denoiser=denoiser)

    def make(what: str, on: str) -> Run:
        planner = stored_last() if on == "last" else programs.planner
        engine: Engine = "eager" if on == "eager" else "graph" if on == "graph" else "compile"
        if what == "paper":
            return as_run(programs.paper)
        if what in ("static", "gated", "gated-own"):
            program = getattr(programs, what.replace("-", "_"))
            return run_certified(planner, program, engine, programs.variant.call(0)[0])
        if what in ("few", "dpm"):
            name = FEWSTEPS if what == "few" else "dpmsolver"
            return run_program(planner, programs.alternative(name).table, engine)
        if what == "full" and on not in ("eager", "compiled"):
            return run_program(planner, programs.full, engine)
        if what == "full" and on == "compiled":  # guards of earlier networks count towards a limit
            torch.compiler.reset()
        if engine == "compile":
            planner = replace(planner, denoiser=CompiledDenoiser(planner.denoiser))
        if what == "full":
            return plain(planner)
        if what == "network":
            sample = network_alone(planner, programs.static)
        else:
            sample = by_hand(planner, programs.alternative("dpmsolver").table)
        return fixed_cost(in_graph(planner, sample) if graphed else sample, programs.count)

    ways = []
    for on, (what, (title, *engines)) in itertools.product(ENGINES, WAYS.items()):
        label = on.replace("-", " ")
        if on == "last":
            title, label = f"{title}, channels last", "compiled graph" if graphed else "compiled"
        offered = on in engines[graphed].split() and (compiled or "compiled" not in label)
        # Random weights make all calls alike: nothing for a gate to adapt to.
        if offered and (programs.variant.trained or what != "gated-own"):
            run = functools.partial(make, what, on)
            ways.append(Way(f"{what}-{on}", title.format(programs.count), label, run))
    return ways
