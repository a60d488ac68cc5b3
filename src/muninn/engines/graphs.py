"""CUDA graphs: work captured once per shape, then replayed without Python in between.

At batch 1 a planner is bound by kernel launches. A fixed plan takes no decision, so a whole call
(evaluations, forecasts, look-back, conditioning, sampler steps) is one graph: inputs are copied
in, the graph runs, outputs are cloned out, and the host reads one small tensor. An adaptive plan
is one graph per *round*, in which every unfinished row is evaluated at its own step; which steps
those are is decided on the device, and the host reads after each round only who is left.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from muninn.context import Context, copy_into, select, tensors
from muninn.engines.capture import capture
from muninn.engines.gap import stacked_draws
from muninn.engines.rounds import RoundRuntime, Rows
from muninn.engines.run_state import RunState, sent
from muninn.engines.runtime import Runtime
from muninn.engines.second_look import SecondLookRuntime
from muninn.engines.shapes import Shapes
from muninn.engines.tables import TableRuntime
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler


def require_cuda(planner: Planner) -> None:
    """Raise InputError unless the planner is on a CUDA device."""
    if planner.device.type != "cuda":
        raise InputError(
            f"the graph engine runs on CUDA devices, the planner is on {planner.device}; use the "
            "eager engine, or move the network and the planner"
        )


@contextmanager
def _ready(device: torch.device) -> Iterator[None]:
    """Make the device the current one, where some kernels run wherever their tensors are, and leave
    inference mode: buffers made in it could not be written to outside of it.

    Gradients are off already. Usually there is nothing to do, and the device waits for it.
    """
    elsewhere = device.type == "cuda" and torch.cuda.current_device() != device.index
    with (
        torch.cuda.device(device) if elsewhere else nullcontext(),
        torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(),
        torch.no_grad() if torch.is_grad_enabled() else nullcontext(),
    ):
        yield


def _buffers(sampler: Sampler, noise: Noise, context: Context, spare: int) -> tuple[Noise, Context]:
    """Input buffers with the given values and ``spare`` more rows, without draws that no step
    uses: the next call may lack them."""
    rows = len(noise.initial)
    index = torch.arange(rows + spare, device=noise.initial.device).clamp_max(rows - 1)
    needed = Noise(noise.initial, {step: noise.steps[step] for step in sampler.drawing})
    return needed.select(index), select(context, index)


def _parts(noise: Noise, steps: Iterable[int], context: Context) -> list[Tensor]:
    """The tensors of a call: x_T, the draws of some steps, the context."""
    found = [noise.initial, *(noise.steps[step] for step in steps)]
    found += [tensor for _, tensor in tensors(context)]
    return found


class Turns:
    """Lets calls from several threads, on whatever streams, use one set of buffers in turn."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._done: Any = None
        self._stream: Any = None  # of the turn before

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for the turn before, on the host, and on the device if it was on another stream."""
        with self._lock:
            if self._device.type != "cuda":
                yield
                return
            stream = torch.cuda.current_stream(self._device)
            if self._done is not None and stream != self._stream:
                stream.wait_event(self._done)
            try:
                yield
            finally:
                self._done, self._stream = torch.cuda.Event(), stream  # type: ignore[no-untyped-call]
                self._done.record(stream)


class _InGraphs(Runtime):
    """Calls as captured work, made once per shape of the inputs; threads take turns.

    A call that cannot be captured fails as one whose denoiser fails: full compute, or an error.
    InputError if the planner is not on a CUDA device.
    """

    _work: ClassVar[Any]  # made of (runtime, noise, context, pool); has replay(run)

    def _set_up(self) -> None:
        require_cuda(self.planner)
        super()._set_up()
        self._captured: Shapes[Any] = Shapes(self.planner, partial(self._work, self))
        self._turns = Turns(self.planner.device)

    def forget(self) -> None:
        with self._turns.take():
            self._captured.clear()

    def _replayed(self, run: RunState) -> Any:
        """Run captured work on the inputs of a call."""
        with self._turns.take(), _ready(self.planner.device):
            return self._captured.run(run.noise, run.context, lambda work: work.replay(run))


# -- fixed plans -------------------------------------------------------------------------------


class _CapturedCall:
    """A captured call: its graph, its input buffers and the state that it writes."""

    def __init__(self, runtime: Runtime, noise: Noise, context: Context, pool: Any) -> None:
        sampler = runtime.planner.sampler
        buffers, inputs = _buffers(sampler, noise, context, 0)
        self._drawing = list(buffers.steps)
        self._inputs = _parts(buffers, self._drawing, inputs)

        def call() -> RunState:
            run = RunState(buffers, inputs, len(sampler))
            runtime._run(run)
            return run

        self._graph, self._run = capture(call, runtime.planner.device, pool)
        self._forget()

    def _forget(self) -> None:
        """Make what is read from the device NaN: a replay that does nothing then fails."""
        assert self._run.packed is not None  # every row shares the steps of a fixed plan
        self._run.packed.fill_(math.nan)

    def replay(self, run: RunState) -> None:
        """Run a call; the host has not read its state yet."""
        given = _parts(run.noise, self._drawing, run.context)
        torch._foreach_copy_(self._inputs, given, non_blocking=True)
        wrote = self._run
        self._graph.replay()
        assert wrote.packed is not None
        run.after, run.packed = wrote.after.clone(), wrote.packed.clone()
        run.unread, run.judged = wrote.unread, wrote.judged
        run.evaluations, run.evaluated = wrote.evaluations.copy(), wrote.evaluated.copy()
        self._forget()


class GraphRuntime(_InGraphs):
    """Runs a program with a fixed plan as one CUDA graph per shape: the eager loop, captured."""

    _work = _CapturedCall

    def _set_up(self) -> None:
        super()._set_up()
        if not self.program.fixed:
            raise InputError("one graph holds a fixed plan; an adaptive one decides on the way")

    def _attempt(self, run: RunState) -> None:
        self._replayed(run)
        run.read()


class TableGraphRuntime(GraphRuntime, TableRuntime):
    """Runs a table as one CUDA graph per shape."""


class SecondLookGraphRuntime(SecondLookRuntime):
    """Runs a second look as two CUDA graphs; in a batch, the second for a few numbers of rows."""

    _table, _loop = TableGraphRuntime, GraphRuntime

    def _served(self, rows: list[int], count: int) -> list[int]:
        size = next(size for size in _sizes(count) if size >= len(rows))
        return rows + rows[-1:] * (size - len(rows))


# -- adaptive plans ----------------------------------------------------------------------------


class _Rounds:
    """Captured rounds of one batch size: state buffers, and a graph per number of rows served.

    Padding writes into one extra row of the buffers, which is discarded.
    """

    def __init__(
        self, runtime: RoundGraphRuntime, noise: Noise, context: Context, pool: Any
    ) -> None:
        self.count = len(noise.initial)
        self._runtime, sampler = runtime, runtime.planner.sampler
        self.noise, self.context = _buffers(sampler, noise, context, 1)
        self._draws = stacked_draws(sampler, self.noise)
        self.rows = runtime._begin(self.noise, self.context)
        self._graphs: dict[int, tuple[Any, Tensor, list[int]]] = {}
        for size in _sizes(self.count):
            served = list(range(size))
            active = torch.tensor(served, device=noise.initial.device)

            def one_round(active: Tensor = active) -> None:
                runtime._round(self.rows, active, self._draws, self.context)

            graph, _ = capture(one_round, noise.initial.device, pool)
            self._graphs[size] = (graph, active, served)

    def replay(self, run: RunState) -> Rows:
        """Rounds until every row is at the end, or DenoiserError; a copy of their final state."""
        steps = self.noise.steps
        copy_into(_parts(self.noise, steps, self.context), _parts(run.noise, steps, run.context))
        draws = stacked_draws(self._runtime.planner.sampler, self.noise)
        if self._draws is not None and draws is not None:
            self._draws.copy_(draws)
        fresh = self._runtime._begin(self.noise, self.context)
        for entry in fields(Rows):
            getattr(self.rows, entry.name).copy_(getattr(fresh, entry.name))
        last = len(self._runtime.planner.sampler) - 1
        active, before = list(range(self.count)), sent(torch.zeros(self.count, device="cpu"))
        for _ in range(last + 1):  # every round takes every row it serves at least a step further
            if not active:
                break
            self._round(active)
            run.use_waiting_time()
            after = sent(self.rows.due[: self.count])
            # Every row ends with the last step, so that who takes part in the next round is known
            # from before this one: the host reads that while the device is busy.
            active = [row for row, due in enumerate(before().tolist()) if due < last]
            before = after
        if active:
            raise DenoiserError(
                f"rows {active[:8]} are not at the end after {last + 1} rounds, one for each step: "
                "what was captured in CUDA graphs does not run; use engine='eager'"
            )
        entries = (getattr(self.rows, entry.name)[: self.count].clone() for entry in fields(Rows))
        return Rows(*entries)

    def _round(self, active: list[int]) -> None:
        size = next(size for size in self._graphs if size >= len(active))
        graph, index, served = self._graphs[size]
        padded = active + [self.count] * (size - len(active))
        if padded != served:
            rows = torch.tensor(padded, device="cpu", pin_memory=index.is_cuda)
            index.copy_(rows, non_blocking=True)
            self._graphs[size] = (graph, index, padded)
        graph.replay()


def _sizes(count: int) -> list[int]:
    """Numbers of rows that rounds are captured for: powers of two, 3/2 of them, the whole batch.

    >>> _sizes(16)
    [1, 2, 3, 4, 6, 8, 12, 16]
    """
    sizes = {2**k * odd // 2 for k in range(count.bit_length()) for odd in (2, 3)}
    return [*sorted(size for size in sizes if size < count), count]


class RoundGraphRuntime(_InGraphs, RoundRuntime):
    """Runs what rounds run, each round a CUDA graph. For adaptive plans, and for batches."""

    _work = _Rounds

    def _attempt(self, run: RunState) -> None:
        self._outcome(run, self._replayed(run))
