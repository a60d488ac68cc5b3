"""Which runtime runs a planner's programs: the eager loop, or CUDA graphs."""

from __future__ import annotations

from muninn.plan import Program
from muninn.planner import Planner
from muninn.runtime import OnFailure, Runtime


def runtime_for(
    planner: Planner, program: Program, *, on_failure: OnFailure = "full", strict: bool = False
) -> Runtime:
    """The runtime of ``planner.engine`` for a program."""
    in_graphs = planner.engine == "graph" or (
        planner.engine == "compile" and planner.device.type == "cuda"
    )
    if not in_graphs:
        return Runtime(planner, program, on_failure=on_failure, strict=strict)
    from muninn.graphs import GraphRuntime, RoundGraphRuntime

    engine = GraphRuntime if program.plan.fixed else RoundGraphRuntime
    return engine(planner, program, on_failure=on_failure, strict=strict)
