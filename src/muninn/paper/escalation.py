"""The paper's escalation: driven by ``rho = Dhat / tolerance``, with risk ``alpha / M`` per sample.

This is the published configuration of :class:`muninn.loop.escalation.Escalation`. ``Dhat`` is not
a bound on the deviation, and a union bound over samples does not cover calls that were picked for
being hard (docs/paper.md, docs/closed_loop.md): for a promise use the machine's own defaults and
:func:`muninn.loop.escalated.certify_escalated`.
"""

from __future__ import annotations

from muninn.errors import InputError
from muninn.loop.escalation import VARIANTS, Escalation, Mode, PlanSource
from muninn.loop.request import Reply, Request, Screen, draw, screened
from muninn.model.schedule import FloatArray
from muninn.paper.policy import PaperRecord, ProbedPlanner
from muninn.record import Record


def rho_of(record: Record) -> FloatArray:
    """The signal of the paper, ``Dhat`` as a share of the tolerance, (batch,)."""
    if not isinstance(record, PaperRecord):
        raise InputError(
            f"rho is in records of muninn.paper.ProbedPlanner, not in a {type(record).__name__}; "
            "certified plans escalate by their rank, with muninn.loop.escalation.Escalation()"
        )
    return record.rho


def paper_escalation(
    candidates: int = 4, allowed: frozenset[Mode] = VARIANTS["combined"]
) -> Escalation:
    """The published thresholds; where full compute does not fit, the safety controller acts.

    The paper's M, ``candidates``, is 4 in simulation and on the boat, 3 on the UAV, 2 on the arm.
    """
    return Escalation(
        warn=0.60,
        resample=0.75,
        full=0.90,
        clear=0.50,
        candidates=candidates,
        allowed=allowed,
        without_full="hold",
        signal=rho_of,
    )


class PaperPrograms:
    """What the published method may be asked for.

    ``cached`` is the policy at risk ``alpha``; ``resampled``, for multi-sample selection, the one
    at ``alpha / M``, whose envelope is ``fit_envelope(pairs, alpha, samples=M)``.
    """

    def __init__(self, cached: ProbedPlanner, resampled: ProbedPlanner, screen: Screen) -> None:
        full = ProbedPlanner(cached.planner, cached.probe, cached.gate, eligible=())
        self._policies = {"cached": cached, "resampled": resampled, "full": full}
        self.cached = cached
        self.screen = screen

    def run(self, request: Request) -> Reply:
        """Plan a request; full compute is the published policy's own, with nothing reused."""
        policy = self._policy(request.source)
        context, noise = draw(policy.planner, request)
        trajectories, record = policy(context, noise=noise)
        return screened(trajectories, record, self.screen, request.context)

    def most_evaluations(self, source: PlanSource | int) -> int:
        """Every step: a gate may never open."""
        return len(self._policy(source).planner.sampler)

    def _policy(self, source: PlanSource | int) -> ProbedPlanner:
        if source not in self._policies:
            raise InputError(f"the published method has no family, so no member {source}")
        return self._policies[source]
