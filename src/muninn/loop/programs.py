"""The programs a robot may ask for: one certified plan, several candidates, or full compute.

They are deterministic functions of a job, context and seeds, so that a call can be replayed and
full compute can be shadowed on the noise that was really used. Every plan leaves here screened.
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
from muninn.loop.escalation import Source
from muninn.model.planner import Noise, Planner
from muninn.programs.plan import Adaptive, Program
from muninn.record import Record

Screen = Callable[[Tensor, Context], bool]
"""``screen(plan, context)``: may the robot execute this plan, (horizon, dim)? Supplied by the
platform and light: a geometric collision check, joint limits, action and gripper bounds."""


@dataclass(frozen=True)
class Job:
    """What is to be planned.

    Attributes:
        source: which program; a number names a member of the certificate's family.
        context: of one row.
        seeds: of the noise, one per plan.
    """

    source: Source | int
    context: Context
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Plans:
    """What came out of a job.

    Attributes:
        trajectories: on the CPU, (plans, horizon, dim).
        record: of the call.
        flaws: of each plan: why it must not be executed, or None.
    """

    trajectories: Tensor
    record: Record
    flaws: tuple[str | None, ...]


class Programs(Protocol):
    """Anything that plans."""

    def run(self, job: Job) -> Plans:
        """Plan; may raise, be slow or never return."""
        ...

    def most_evaluations(self, source: Source | int) -> int:
        """Denoiser evaluations that one plan may take at most, in a call that does not fail."""
        ...


def accept_all(plan: Tensor, context: Context) -> bool:
    """The screen of a platform that has none; name it, so that nobody forgets one."""
    return True


def draw(planner: Planner, job: Job) -> tuple[Context, Noise]:
    """Context and noise of a job, one row per plan."""
    if batch_size(job.context) not in (None, 1):
        raise InputError("a job plans for one robot: give a context of one row")
    rows = torch.zeros(len(job.seeds), dtype=torch.long, device=planner.device)
    return select(job.context, rows), planner.draw_noise(seeds=job.seeds)


def screened(trajectories: Tensor, record: Record, screen: Screen, context: Context) -> Plans:
    """Plans with their flaws; a screen that raises counts as one."""
    plans = trajectories.detach().cpu()
    return Plans(plans, record, tuple(_flaw(plan, screen, context) for plan in plans))


def _flaw(plan: Tensor, screen: Screen, context: Context) -> str | None:
    if not torch.isfinite(plan).all():
        return "the plan is not finite"
    try:
        return None if screen(plan, context) else "the plan fails the feasibility screen"
    except Exception as error:  # the platform's own code
        return f"the feasibility screen failed ({type(error).__name__}: {error})"


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
        self._runtimes: dict[int, Runtime] = {}

    def run(self, job: Job) -> Plans:
        """Plan a job.

        Raises:
            InputError: the context has several rows, or the member is more aggressive than the
                certified one.
            DenoiserError: no finite trajectory came out.
        """
        context, noise = draw(self.fast.planner, job)
        member = self._member(job.source)
        misfit = self.fast.misfit(context, len(noise.initial)) or self.fast.reason
        if self.fast.certificate is None or misfit or member == self.member:
            trajectories, record = self.fast(context, noise=noise)
        else:
            trajectories, record = self._runtime(member)(context, noise=noise)
        return screened(trajectories, record, self.screen, job.context)

    def most_evaluations(self, source: Source | int) -> int:
        """Evaluations of the member's plan; for an adaptive one its cap."""
        member, steps = self._member(source), len(self.fast.planner.sampler)
        plan = self._program(member).plan
        if isinstance(plan, Adaptive):
            return min(plan.cap, steps)
        return len(getattr(plan, "anchors", range(steps)))

    def members(self) -> Sequence[int]:
        """Members among which a call may choose by itself, conservative first.

        The promise bounds the running maximum over all members up to the certified one, so in open
        loop any choice among them keeps it, made for whatever reason. A closed-loop promise is
        about a member that drives the whole episode: there the certified one alone.
        """
        certificate = self.fast.certificate
        if certificate is not None and certificate.loop == "closed":
            return [self.member]
        return range(self.member + 1)

    def _member(self, source: Source | int) -> int:
        if source == "full":
            return 0
        member = source if isinstance(source, int) else self.member
        if not 0 <= member <= self.member:
            raise InputError(
                f"member {member} is not certified; the certificate covers 0 (full compute) to "
                f"{self.member}"
            )
        return member

    def _program(self, member: int) -> Program:
        certificate = self.fast.certificate
        if certificate is None:
            return Program.full(self.fast.planner.sampler.kind)
        return certificate.family.member(member)

    def _runtime(self, member: int) -> Runtime:
        if member not in self._runtimes:  # a captured one is worth keeping
            program = self._program(member)
            self._runtimes[member] = runtime_for(self.fast.planner, program, on_failure="error")
        return self._runtimes[member]
