"""CUDA graphs: a whole call captured once per shape, then replayed without Python in between.

At batch 1 a planner is bound by kernel launches. A static plan takes no decision, so the network's
evaluations, forecasts, look-back, conditioning and sampler steps of a call are one graph: inputs
are copied in, the graph runs, outputs are cloned out, and the host reads one small tensor.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from muninn.context import Context, copy_into, like, signature
from muninn.errors import InputError
from muninn.plan import Program
from muninn.planner import Noise, Planner
from muninn.record import Record
from muninn.runtime import OnFailure, RunState, Runtime, log_once

MOST_SHAPES = 8  # captured at a time; the least recently used is dropped
WARM_UP = 3  # runs before a capture, in which libraries choose kernels and allocate workspaces


@dataclass
class Captured:
    """A captured function of (noise, context), its input buffers and what it returned."""

    graph: torch.cuda.CUDAGraph
    noise: Noise
    context: Context
    result: Any

    def replay(self, noise: Noise, context: Context) -> Any:
        """Run on other inputs of the same shapes; ``result`` is overwritten in place."""
        self.noise.initial.copy_(noise.initial, non_blocking=True)
        for step, draw in noise.steps.items():
            self.noise.steps[step].copy_(draw, non_blocking=True)
        copy_into(self.context, context)
        self.graph.replay()
        return self.result


def capture(function: Callable[[Noise, Context], Any], noise: Noise, context: Context) -> Captured:
    """Capture ``function(noise, context)``, which must not read from the device.

    Raises:
        RuntimeError: what the function did cannot be captured; nothing is left behind.
    """
    buffers = Noise(
        noise.initial.clone(), {step: draw.clone() for step, draw in noise.steps.items()}
    )
    inputs = like(context)
    copy_into(inputs, context)
    side = torch.cuda.Stream(noise.initial.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(noise.initial.device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            function(buffers, inputs)
    torch.cuda.current_stream(noise.initial.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(buffers, inputs)
    return Captured(graph, buffers, inputs, result)


def require_cuda(planner: Planner) -> None:
    """Raise InputError unless the planner is on a CUDA device."""
    if planner.device.type != "cuda":
        raise InputError(
            f"the graph engine runs on CUDA devices, the planner is on {planner.device}; use the "
            "eager engine, or move the network and the planner"
        )


class GraphRuntime(Runtime):
    """Runs a fixed program (a static plan, or full compute) as one CUDA graph per shape.

    A call that cannot be captured runs eagerly, and says so once. Calls from several threads take
    turns.

    Raises:
        InputError: the planner is not on a CUDA device, or the plan is adaptive.
    """

    def __init__(
        self,
        planner: Planner,
        program: Program,
        *,
        on_failure: OnFailure = "full",
        strict: bool = False,
    ) -> None:
        super().__init__(planner, program, on_failure=on_failure, strict=strict)
        require_cuda(planner)
        if not program.plan.fixed:
            raise InputError("one graph holds a static plan; an adaptive one decides on the way")
        self._captured: OrderedDict[Hashable, Captured | None] = OrderedDict()
        self._lock = threading.Lock()

    @torch.no_grad()
    def __call__(
        self,
        context: Context = None,
        *,
        noise: Noise | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Record]:
        """One planning call; see :meth:`Runtime.__call__`."""
        began = time.perf_counter()
        noise = self.planner.prepare(context, noise, generator)
        with self._lock:
            captured = self._for_shape(noise, context)
            run = None if captured is None else self._outcome(captured.replay(noise, context))
        if run is None:
            return super().__call__(context, noise=noise)
        self._read(run)
        return self._finish(run, noise, context, began)

    def _for_shape(self, noise: Noise, context: Context) -> Captured | None:
        key = (tuple(noise.initial.shape), signature(context))
        if key not in self._captured:
            try:
                self._captured[key] = capture(self._whole_call, noise, context)
            except RuntimeError as error:
                log_once(f"running eagerly, the call cannot be captured in a CUDA graph: {error}")
                self._captured[key] = None
            while len(self._captured) > MOST_SHAPES:
                self._captured.popitem(last=False)
        self._captured.move_to_end(key)
        return self._captured[key]

    def _whole_call(self, noise: Noise, context: Context) -> RunState:
        run = self._blank(noise)
        self._run(run, noise, context)
        return run

    def _outcome(self, captured: RunState) -> RunState:
        """A call's own copy of what the graph wrote."""
        packed = captured.packed
        return replace(
            captured,
            after=captured.after.clone(),
            evaluations=captured.evaluations.copy(),
            evaluated=captured.evaluated.copy(),
            charged=captured.charged.copy(),
            failed={},
            sums=list(captured.sums),
            scales=list(captured.scales),
            packed=None if packed is None else packed.clone(),
        )
