"""Which runtime runs a planner's programs: the eager loop, or CUDA graphs."""

from __future__ import annotations

from torch import Tensor

from muninn.context import Context
from muninn.engines.capture import capture
from muninn.engines.compiled import CompiledDenoiser
from muninn.engines.graphs import (
    GraphRuntime,
    RoundGraphRuntime,
    SecondLookGraphRuntime,
    TableGraphRuntime,
)
from muninn.engines.runtime import OnFailure, Runtime
from muninn.engines.second_look import SecondLookRuntime
from muninn.engines.tables import TableRuntime
from muninn.errors import InputError
from muninn.model.denoiser import Denoiser
from muninn.model.planner import Planner
from muninn.programs.plan import AnyProgram, Program
from muninn.programs.second_look import SecondLook
from muninn.programs.table import Table


def runtime_for(
    planner: Planner, program: AnyProgram, *, on_failure: OnFailure = "full", strict: bool = False
) -> Runtime:
    """The runtime of ``planner.engine`` for a program."""
    graphs = planner.engine == "graph" or (planner.engine, planner.device.type) == (
        "compile",
        "cuda",
    )
    engine: type[Runtime]
    if isinstance(program, Table):
        engine = TableGraphRuntime if graphs else TableRuntime
    elif isinstance(program, SecondLook):
        engine = SecondLookGraphRuntime if graphs else SecondLookRuntime
    elif isinstance(program, Program):
        engine = Runtime if not graphs else GraphRuntime if program.fixed else RoundGraphRuntime
    else:
        raise InputError(f"no engine runs a program of kind {program.kind!r}; write one for it")
    return engine(planner, program, on_failure=on_failure, strict=strict)


def denoiser_on_engine(planner: Planner) -> Denoiser:
    """The planner's denoiser as its engine runs it: compiled, in a graph, or as it is."""
    denoiser = planner.denoiser
    if planner.engine == "compile":
        denoiser = CompiledDenoiser(denoiser)
    if planner.engine == "eager" or planner.device.type != "cuda":
        return denoiser

    def captured(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        graph, answer = capture(lambda: denoiser(x, timestep, context), planner.device)
        graph.replay()
        return answer

    return captured
