"""The cache of a loop that cannot be replaced: it stands between somebody's loop and the network.

The loop calls the network once per step. An :class:`Interceptor` evaluates it at the steps of a
plan and answers with forecasts at the others. It sees the states but cannot rewrite them, so only
programs without look-back run here; within rounding they compute what
:class:`muninn.engines.runtime.Runtime` computes with the same program.

A run of the loop is cached only if the run before it asked for the sampler's steps once each, in
order. So the first run is full compute, and so is every run of a loop that is not the planner's:
RK4, Heun, guidance in two calls, two loops that take turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from muninn.engines.gap import difference_size
from muninn.engines.runtime import log_once
from muninn.errors import InputError
from muninn.model.denoiser import in_own_loop
from muninn.model.planner import Planner
from muninn.programs.forecast import weighted_sum
from muninn.programs.plan import AnyProgram, Everywhere, Program
from muninn.record import Record

Read = Callable[..., tuple[Tensor, Any]]
"""From the network's own arguments: the state (batch, *shape) and the timestep."""

NEAR = 0.05
"""A timestep is a step's if it is this near, in shares of the smallest distance of two steps:
loops add up times in float32 or bfloat16; the stages of Heun and RK4 are half a step away."""

_WATCHED = "no run before this one asked for the sampler's steps once each, in order"


def first_two(x: Tensor, timestep: Any, *_: Any, **__: Any) -> tuple[Tensor, Any]:
    """State and timestep of a network that is called ``network(x, timestep, ...)``."""
    return x, timestep


def require_not_compiled(network: Any) -> None:
    """Raise InputError for what ``torch.compile`` or ``torch.jit`` made: it runs traced code."""
    compiled = hasattr(network, "_orig_mod") or hasattr(network, "_torchdynamo_orig_callable")
    in_place = getattr(network, "_compiled_call_impl", None) is not None
    if compiled or in_place or isinstance(network, torch.jit.ScriptModule):
        raise InputError(
            f"{type(network).__name__} is compiled; give the network as it was before "
            "torch.compile or torch.jit, or compile a part inside it"
        )


@dataclass
class _Run:
    """One run of the loop, as far as the network sees it."""

    rows: int
    evaluated: npt.NDArray[np.bool_]
    reason: str | None  # why full compute runs from here on
    step: int = -1  # the last one seen
    orderly: bool = True  # every step so far, once each
    due: int = 0  # the next one to evaluate
    evaluations: int = 0
    nodes: tuple[int, ...] = ()
    history: list[Tensor] = field(default_factory=list)  # of the nodes; float32, private
    answers: torch.dtype = torch.float32  # of the network
    charged: list[tuple[Tensor, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0


class Interceptor:
    """Stands for the network in somebody's loop, and is called as the network is.

    One per network; not thread-safe. :func:`muninn.adapters.call_level.intercept` builds the one
    that keeps a certificate's promise. The loop calls ``network`` once per step, guidance
    included; ``read`` tells state and timestep from its arguments. InputError if the program
    looks back.
    """

    stands_in = True  # is no part of the network

    def __init__(
        self,
        network: Callable[..., Any],
        planner: Planner,
        program: AnyProgram,
        read: Read = first_two,
    ) -> None:
        if not isinstance(program, Program):
            raise InputError(
                f"the program is a {program.kind}: it goes its own way between evaluations, and "
                "this loop keeps its states to itself. Calibrate a family without: "
                "family=tune_without_look_back(...) of muninn.adapters.call_level"
            )
        if program.forecast.look_back and not isinstance(program.plan, Everywhere):
            raise InputError(
                "the program looks back: it rewrites states that this loop keeps to itself. "
                "Calibrate a family without: family=tune_without_look_back(...) of "
                "muninn.adapters.call_level"
            )
        self._network = network
        self._module: nn.Module | None = None  # whose forward this replaces
        self._read = read
        self._planner = planner
        self._plan = program.plan
        self._quantity = program.forecast.quantity
        self._forecaster = program.forecast.bind(planner.sampler, program.plan.emphasis)
        self._times = np.array([step.timestep for step in planner.sampler.steps], float)
        self._near = NEAR * float(np.abs(np.diff(self._times)).min(initial=np.inf))
        self._run: _Run | None = None

    @property
    def last(self) -> Record | None:
        """Record of the last run of the loop, or of the present one so far.

        ``fallback`` says why full compute ran: from the first step on, or from a later one, and
        then no promise holds for the run: its earlier forecasts cannot be taken back.
        """
        run = self._run
        if run is None:
            return None
        estimate = np.zeros(run.rows)
        for size, growth in run.charged:
            estimate += size.double().cpu().numpy() * growth
        return Record(
            np.full(run.rows, run.evaluations),
            np.tile(run.evaluated, (run.rows, 1)),
            estimate,
            (run.reason,) * run.rows,
            run.ended - run.began,
        )

    def _refusal(self) -> str | None:
        """Why a run that begins here is full compute, or None."""
        return None

    def _objection(self, rows: int) -> str | None:
        """Why a run of some rows may not go on with forecasts, or None; asked at every step."""
        return None

    # Not compiled: a compiled loop would repeat the decisions of the run it traced.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._module is not None and in_own_loop():
            return self._network(*args, **kwargs)
        x, timestep = self._read(*args, **kwargs)
        step = self._step(timestep)
        run = self._follow(x, step)
        if step is not None and run.reason is None and step < run.due:
            output, run.step = self._forecast(run, x, step), step
        else:
            output = self._network(*args, **kwargs)
            run.evaluations += 1
            if step is not None:
                run.step, run.evaluated[step] = step, True
                if run.reason is None:
                    self._keep(run, x, output, step)
        run.ended = time.perf_counter()
        return output

    def _step(self, timestep: Any) -> int | None:
        """The sampler's step at a timestep, or None. Read at once: views may be rewritten."""
        values = timestep.reshape(-1).tolist() if isinstance(timestep, Tensor) else [timestep]
        distance = np.abs(self._times[:, None] - np.array(values, float)).max(axis=1)
        nearest = int(distance.argmin())
        return nearest if distance[nearest] <= self._near else None

    def _follow(self, x: Tensor, step: int | None) -> _Run:
        """The run that a call of the network belongs to; one begins at the sampler's first step."""
        run = self._run
        if run is None or step == 0:
            self._run = None  # an error ends what was known of the loop
            reason = self._refusal()
            proven = run is not None and run.orderly and run.step == len(self._times) - 1
            evaluated = np.zeros(len(self._times), np.bool_)
            run = self._run = _Run(len(x), evaluated, reason or (None if proven else _WATCHED))
        run.orderly &= step == run.step + 1
        if run.reason is None and (reason := self._misfit(run, x, step)) is not None:
            self._give_up(run, reason)
        return run

    def _give_up(self, run: _Run, reason: str) -> None:
        """Full compute until the loop begins again."""
        run.reason = reason
        run.history.clear()
        log_once(f"full compute at call level: {reason}")

    def _misfit(self, run: _Run, x: Tensor, step: int | None) -> str | None:
        """Why this call is not the next one of the program, or None."""
        planner = self._planner
        expected = (run.rows, *planner.shape), planner.dtype, planner.device
        if (reason := self._objection(run.rows)) is not None:
            return reason
        if step is None:
            return "the loop asked for a timestep that the sampler does not visit"
        if step != run.step + 1:
            return f"the loop came to step {step} where {run.step + 1} was next"
        if (tuple(x.shape), x.dtype, x.device) != expected:
            return f"a state is {tuple(x.shape)} {x.dtype} {x.device}, expected {expected}"
        if torch.is_grad_enabled() and x.requires_grad:
            return "the loop differentiates the network (guidance, real-time chunking)"
        if run.rows > 1 and not self._plan.fixed:
            return f"an adaptive plan decides per trajectory, and the loop samples {run.rows}"
        return None

    @torch.no_grad()
    def _keep(self, run: _Run, x: Tensor, output: Any, step: int) -> None:
        """Store a private copy of an evaluation and name the next. The loop may rewrite ours."""
        if not isinstance(output, Tensor) or output.shape != x.shape:
            seen = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            return self._give_up(run, f"the network returned {seen}, the state is {tuple(x.shape)}")
        value = self._planner.sampler.convert(x, output, step, self._quantity)
        if not bool(torch.isfinite(value).all()):
            return self._give_up(run, f"the network returned NaN or Inf at step {step}")
        memory, steps = self._forecaster.memory, len(self._times)
        run.answers = output.dtype
        run.nodes = (*run.nodes, step)[-memory:]
        run.history = [*run.history, value.to(torch.float32, copy=True)][-memory:]
        growth = self._forecaster.growth(run.nodes)
        size = difference_size(self._forecaster, run.nodes, run.history, self._planner.shape[0])
        scale = math.nan
        if size is not None and not self._plan.fixed and len(run.nodes) == memory:
            scale = float(size)
        run.due = self._plan.within(step, steps, run.evaluations, growth, scale)
        if size is not None and run.due > step + 1:
            run.charged.append((size, float(growth[run.due - 1])))
        return None

    @torch.no_grad()
    def _forecast(self, run: _Run, x: Tensor, step: int) -> Tensor:
        """The forecast, as the network's own kind at the loop's own state; a fresh tensor."""
        row = self._forecaster.extrapolate(run.nodes, run.due)[step - run.nodes[-1] - 1]
        value = weighted_sum(row, run.history)
        from_state, from_prediction = self._planner.sampler.conversion(step, self._quantity)
        return value.sub_(x, alpha=from_state).div_(from_prediction).to(run.answers)

    def install(self, module: nn.Module) -> None:
        """Put this in the place of the module's own ``forward``, on that object."""
        present = vars(module).get("forward")
        if present is not None and getattr(present, "__func__", None) is not type(module).forward:
            raise InputError(
                f"forward of this {type(module).__name__} was already replaced, by {present!r}; "
                "undo that first (an Interceptor: remove())"
            )
        self._module = module
        module.forward = self

    def remove(self) -> None:
        """Leave the module as if it had never been intercepted."""
        module = self._module
        if module is None or vars(module).get("forward") is not self:
            raise InputError(
                "this does not stand in the place of a module's forward; nothing to undo"
            )
        del module.forward
        self._module = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is plain: the network itself, and the class's own forward of a copied module,
        whose attributes are not yet set when it is looked up there."""
        if self._module is not None:
            return getattr, (self._module, "forward")
        return _plain, (self._network,)


def _plain(network: Any) -> Any:
    return network
