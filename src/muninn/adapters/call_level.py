"""The cache of a loop that cannot be replaced: it stands between somebody's loop and the network.

The loop calls the network once per step. An :class:`Interceptor` evaluates it at the steps of a
certified plan and answers with forecasts at the others. It sees the states but cannot rewrite
them, so only programs without look-back run here; within rounding they compute what
:class:`muninn.engines.runtime.Runtime` computes with the same program, which is what was certified.

A run of the loop is cached only if the run before it asked for the sampler's steps once each, in
order. So the first run is full compute, and so is every run of a loop that is not the certified
one: RK4, Heun, guidance in two calls, two loops that take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from muninn.adapters.watch import require_not_compiled
from muninn.certify.cached import CachedPlanner, OnMismatch, cache
from muninn.certify.certificate import Certificate
from muninn.engines.runtime import log_once
from muninn.errors import InputError
from muninn.identity.watch import reaches
from muninn.model.denoiser import in_own_loop
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecaster, weighted_sum
from muninn.programs.plan import Adaptive, Everywhere, Program
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
    """Stands for the network in somebody's loop; build it with :func:`intercept`.

    Called as the network is. One per network; not thread-safe.

    Attributes:
        certificate: the promise, or None where full compute runs instead.
    """

    stands_in = True  # is no part of the network

    def __init__(self, network: Callable[..., Any], cached: CachedPlanner, read: Read) -> None:
        self.certificate = cached.certificate
        self._network = network
        self._module: nn.Module | None = None  # whose forward this replaces
        self._cached = cached
        self._read = read
        self._planner = planner = cached.planner
        program = (
            Program.full(planner.sampler.kind)
            if cached.certificate is None
            else cached.certificate.program
        )
        self._plan = program.plan
        self._quantity = program.forecast.quantity
        emphasis = program.plan.emphasis if isinstance(program.plan, Adaptive) else 0.0
        self._forecaster = Forecaster(program.forecast, planner.sampler, emphasis)
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
        record = Record(
            np.full(run.rows, run.evaluations),
            np.tile(run.evaluated, (run.rows, 1)),
            estimate,
            (run.reason,) * run.rows,
            run.ended - run.began,
        )
        if self.certificate is None or run.reason is not None:
            return record
        bound, rank = self.certificate.bound(estimate), self.certificate.rank(estimate)
        return replace(record, bound=bound, rank=rank)

    # Not compiled: a compiled loop would repeat the decisions of the run it traced.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._module is not None and in_own_loop():
            return self._network(*args, **kwargs)
        x, timestep = self._read(*args, **kwargs)
        step = self._step(timestep)
        run = self._follow(x, step)
        skipped = run.reason is None and step is not None and step < run.due
        if step is not None and skipped:
            output = self._forecast(run, x, step)
        else:
            output = self._network(*args, **kwargs)
            run.evaluations += 1
        if step is not None:
            run.step = step
            run.evaluated[step] |= not skipped
            if run.reason is None and not skipped:
                self._keep(run, x, output, step)
        run.ended = time.perf_counter()
        return output

    # -- which run, which step -------------------------------------------------------------------

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
            reason = self._cached.reason
            if reason is not None and self.certificate is not None:
                self._run = None
                self._cached.refuse(reason)
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
        """Why this call is not the next one of the certified program, or None."""
        planner = self._planner
        expected = (run.rows, *planner.shape), planner.dtype, planner.device
        if (reason := self._cached.other_arithmetic) is not None:
            return reason
        if step is None:
            return "the loop asked for a timestep that the sampler does not visit"
        if step != run.step + 1:
            return f"the loop came to step {step} where {run.step + 1} was next"
        if (tuple(x.shape), x.dtype, x.device) != expected:
            return f"a state is {tuple(x.shape)} {x.dtype} {x.device}, expected {expected}"
        if torch.is_grad_enabled() and x.requires_grad:
            return "the loop differentiates the network (guidance, real-time chunking)"
        if (reason := self._cached.too_many(run.rows)) is not None:
            return reason
        if run.rows > 1 and not self._plan.fixed:
            return f"an adaptive plan decides per trajectory, and the loop samples {run.rows}"
        return None

    # -- evaluation and forecast -----------------------------------------------------------------

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
        weights, growth = self._forecaster.difference(run.nodes), self._forecaster.growth(run.nodes)
        size = None
        if weights is not None:
            difference = weighted_sum(weights, run.history).flatten(1)
            size = torch.linalg.vector_norm(difference, dim=1) / self._planner.shape[0] ** 0.5
        scale = float("nan")
        if size is not None and not self._plan.fixed and len(run.nodes) == memory:
            scale = float(size)
        named = self._plan.next(step, steps, run.evaluations, growth, scale)
        run.due = min(max(named, step + 1), steps - 1)
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

    # -- on and off ------------------------------------------------------------------------------

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


def intercept(
    network: Callable[..., Any],
    planner: Planner,
    certificate: Certificate | str | Path,
    *,
    read: Read = first_two,
    on_mismatch: OnMismatch = "error",
) -> Interceptor:
    """Cache a network inside a loop that is somebody else's.

    Of a module, ``forward`` is replaced on that object, so that loops which hold it are served;
    ``remove()`` of what is returned undoes it. Of another callable nothing is replaced: hand the
    loop what is returned.

    Args:
        network: what the loop calls once per step, guidance included.
        planner: the loop, as it was calibrated: same network, sampler, shape and conditioning.
        certificate: for a program without look-back, or the path of its file;
            :func:`muninn.adapters.without_look_back.tune_without_look_back` makes a family.
        read: tells state and timestep from the arguments of the network's call.
        on_mismatch: as in :func:`muninn.cache`.

    Raises:
        InputError: the program looks back, the network is compiled or already intercepted.
        CertificateError: names the fields that differ, with ``on_mismatch="error"``; raised at
            the start of a *run* if the network was changed.
    """
    require_not_compiled(network)
    if planner.engine != "eager":
        raise InputError(
            f"the planner's engine is {planner.engine!r}; the loop runs eagerly: calibrate a "
            "planner with engine='eager'"
        )
    cached = cache(planner, certificate, on_mismatch=on_mismatch)
    if cached.certificate is not None:
        program = cached.certificate.program
        if program.forecast.look_back and not isinstance(program.plan, Everywhere):
            raise InputError(
                "the certified program looks back: it rewrites states that this loop keeps to "
                "itself. Calibrate a family without: family=tune_without_look_back(...) of "
                "muninn.adapters.without_look_back"
            )
    if not isinstance(network, nn.Module):
        return Interceptor(network, cached, read)
    if cached.certificate is not None and not reaches(planner.denoiser, network):
        raise InputError(
            f"the planner's denoiser does not hold this {type(network).__name__}: the certificate "
            "was compared with the denoiser, and says nothing about another network. Build the "
            "planner around the network that the loop calls"
        )
    plain = type(network).forward.__get__(network)
    interceptor = Interceptor(plain, cached, read)
    interceptor.install(network)
    return interceptor
