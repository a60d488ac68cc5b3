"""A certificate for a loop that cannot be replaced: its network is intercepted.

The certified program must not look back, because the loop keeps its states to itself:
:func:`tune_without_look_back` finds a family of such programs, :func:`intercept` deploys one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from muninn.certify.cached import CachedPlanner, OnMismatch, cache
from muninn.certify.certificate import Certificate
from muninn.certify.frontier import Frontier
from muninn.certify.metrics import Metric, Tolerance
from muninn.certify.paired import PairedCalls
from muninn.certify.published import Pair
from muninn.certify.scores import Entry
from muninn.certify.tune import frontier_family
from muninn.engines.intercept import Interceptor, Read, first_two, require_not_compiled
from muninn.errors import InputError
from muninn.identity.watch import reaches
from muninn.model.planner import Planner
from muninn.programs.forecast import ORDERS, Forecast
from muninn.programs.methods import Method
from muninn.programs.plan import AnyProgram, Family, Program, Static
from muninn.programs.spacing import State, sampler_states
from muninn.programs.table import nearest_steps
from muninn.progress import bars
from muninn.record import Record


class CertifiedInterceptor(Interceptor):
    """An interceptor that compares every run with its certificate, None where Full runs instead."""

    def __init__(self, network: Callable[..., Any], cached: CachedPlanner, read: Read) -> None:
        self.certificate = certificate = cached.certificate
        full = Program.full(cached.planner.sampler.kind)
        program = full if certificate is None else certificate.program
        super().__init__(network, cached.planner, program, read)
        self._cached = cached

    @property
    def last(self) -> Record | None:
        """Record of the last run, with its bound and rank where a promise holds for the run."""
        record, certificate = super().last, self.certificate
        if record is None or certificate is None or record.fallbacks:
            return record
        bound = None if certificate.bound is None else certificate.bound(record.estimate)
        return replace(record, bound=bound, rank=certificate.rank(record.estimate))

    def _refusal(self) -> str | None:
        reason = self._cached.reason
        if reason is not None and self.certificate is not None:
            self._cached.refuse(reason)
        return reason

    def _objection(self, rows: int) -> str | None:
        return self._cached.other_arithmetic or self._cached.too_many(rows)


def intercept(
    network: Callable[..., Any],
    planner: Planner,
    certificate: Certificate | str | Path,
    *,
    read: Read = first_two,
    on_mismatch: OnMismatch = "error",
) -> CertifiedInterceptor:
    """Cache a network inside a loop that is somebody else's.

    Of a module, ``forward`` is replaced on that object, so that loops which hold it are served;
    ``remove()`` of what is returned undoes it. Of another callable nothing is replaced: hand the
    loop what is returned.

    Args:
        network, read: as in :class:`muninn.engines.intercept.Interceptor`.
        planner: the loop, as it was calibrated: same network, sampler, shape and conditioning.
        certificate: for a program without look-back, or the path of its file.
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
    if not isinstance(network, nn.Module):
        return CertifiedInterceptor(network, cached, read)
    interceptor = CertifiedInterceptor(type(network).forward.__get__(network), cached, read)
    if cached.certificate is not None and not reaches(planner.denoiser, network):
        raise InputError(
            f"the planner's denoiser does not hold this {type(network).__name__}: the certificate "
            "was compared with the denoiser, and says nothing about another network. Build the "
            "planner around the network that the loop calls"
        )
    interceptor.install(network)
    return interceptor


class ForwardFrontier(Frontier):
    """Programs without look-back, as loops: what can run inside somebody else's loop."""

    def built(self, pair: Pair, states: tuple[State, ...]) -> AnyProgram:
        """A forecast of the sampler's own loop, evaluated at some of its steps."""
        chosen = self.methods[pair.method].build
        assert isinstance(chosen, functools.partial)
        anchors = nearest_steps(self.planner.sampler, states)
        return Program(Forecast(**chosen.keywords), Static(tuple(anchors)))

    def _spacings(self, method: Method, count: int) -> dict[str, tuple[State, ...]]:
        """Those that end with the sampler's last step, which a loop always evaluates."""
        last, found = sampler_states(self._sampler)[-1], super()._spacings(method, count)
        return {name: states for name, states in found.items() if states[-1] == last}

    def _moved_published(self, count: int) -> Entry:
        return self.published(count)[0]  # a move could leave the last step


def tune_without_look_back(
    planner: Planner,
    calls: object,
    *,
    tolerance: Tolerance,
    share: float = 0.03,
    metric: str | Metric = "rms_step",
    seed: int = 0,
    progress: bool = True,
) -> Family:
    """A family of static plans without look-back, from contexts that will not certify it.

    The arguments are those of :func:`muninn.tune`. Pass the family to
    ``muninn.calibrate(planner, other_calls, family=...)``.
    """
    paired = PairedCalls.for_tuning(planner, calls, metric, seed)
    names = {f"{kind}-{order}" for kind in planner.sampler.kinds for order in ORDERS}
    with bars(progress) as task:
        advance = task("tune: programs tried", None)
        frontier = ForwardFrontier(paired, tolerance, share, advance=advance, groups=names)
        return frontier_family(frontier, adaptive=False)
