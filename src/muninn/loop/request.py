"""What a robot may ask for: one certified plan, several candidates, or full compute.

A reply is a function of its request, context and seeds included: a call can be replayed, and full
compute can be run beside it on the noise that was really used. Every plan leaves here screened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from muninn.certify.cached import CachedPlanner
from muninn.context import Context, batch_size, select
from muninn.engines.choose import runtime_for
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.loop.escalation import PlanSource
from muninn.model.planner import Noise, Planner
from muninn.record import Record

Screen = Callable[[Tensor, Context], bool]
"""``screen(plan, context)``: may the robot execute this plan, (horizon, dim)? Supplied by the
platform and light: a geometric collision check, joint limits, action and gripper bounds."""


@dataclass(frozen=True)
class Request:
    """Plans for a context of one row, one per seed of the noise."""

    source: PlanSource | int  # a number names a member of the certificate's family
    context: Context
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """The plans of a request."""

    trajectories: Tensor  # on the CPU, (plans, horizon, dim)
    record: Record
    flaws: tuple[str | None, ...]  # why a plan must not be executed, one per plan


class Responder(Protocol):
    """Anything that answers requests for plans."""

    def run(self, request: Request) -> Reply:
        """Plan; may raise, be slow or never return."""

    def most_evaluations(self, source: PlanSource | int) -> int:
        """Denoiser evaluations that one plan may take at most, in a call that does not fail."""


def accept_all(plan: Tensor, context: Context) -> bool:
    """The screen of a platform that has none; name it, so that nobody forgets one."""
    return True


def draw(planner: Planner, request: Request) -> tuple[Context, Noise]:
    """Context and noise of a request, one row per plan."""
    if batch_size(request.context) not in (None, 1):
        raise InputError("a request plans for one robot: give a context of one row")
    rows = torch.zeros(len(request.seeds), dtype=torch.long, device=planner.device)
    return select(request.context, rows), planner.draw_noise(seeds=request.seeds)


def screened(trajectories: Tensor, record: Record, screen: Screen, context: Context) -> Reply:
    """Plans with their flaws; a screen that raises counts as one."""

    def flaw(plan: Tensor) -> str | None:
        if not torch.isfinite(plan).all():
            return "the plan is not finite"
        try:
            return None if screen(plan, context) else "the plan fails the feasibility screen"
        except Exception as error:  # the platform's own code
            return f"the feasibility screen failed ({type(error).__name__}: {error})"

    plans = trajectories.detach().cpu()
    return Reply(plans, record, tuple(map(flaw, plans)))


class CertifiedPrograms:
    """The certified member, full compute, and every member between them.

    Args:
        fast: from :func:`muninn.cache`. With ``on_mismatch="full"`` and a certificate that does not
            match, every source is full compute, and every record says so.
        screen: of the platform; :func:`accept_all` if it has none.
    """

    def __init__(self, fast: CachedPlanner, screen: Screen) -> None:
        self.fast = fast
        self.screen = screen
        self.member = 0 if fast.certificate is None else fast.certificate.member
        self._runtimes: dict[int, Runtime] = {}  # a captured one is worth keeping

    def run(self, request: Request) -> Reply:
        """Plan; InputError for several rows or an uncertified member, DenoiserError for NaN."""
        context, noise = draw(self.fast.planner, request)
        member = self._member(request.source)
        misfit = self.fast.misfit(context, len(noise.initial)) or self.fast.reason
        if self.fast.certificate is None or misfit or member == self.member:
            trajectories, record = self.fast(context, noise=noise)
        else:
            if member not in self._runtimes:
                program = self.fast.certificate.family.member(member)
                self._runtimes[member] = runtime_for(self.fast.planner, program, on_failure="error")
            trajectories, record = self._runtimes[member](context, noise=noise)
        return screened(trajectories, record, self.screen, request.context)

    def most_evaluations(self, source: PlanSource | int) -> int:
        """Evaluations of the member's plan; for an adaptive one its cap."""
        member, steps = self._member(source), len(self.fast.planner.sampler)
        if self.fast.certificate is None:
            return steps
        return self.fast.certificate.family.member(member).most_evaluations(steps)

    def members(self) -> Sequence[int]:
        """Members among which a call may choose by itself, conservative first."""
        certificate = self.fast.certificate
        return [0] if certificate is None else certificate.choices()

    def _member(self, source: PlanSource | int) -> int:
        member = source if isinstance(source, int) else 0 if source == "full" else self.member
        if not 0 <= member <= self.member:
            raise InputError(
                f"member {member} is not certified; the certificate covers 0 (full compute) to "
                f"{self.member}"
            )
        return member
