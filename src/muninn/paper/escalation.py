"""The paper's escalation: driven by ``rho = Dhat / tolerance``, with risk ``alpha / M`` per sample.

The machine is :class:`muninn.loop.escalation.Escalation`; this is its published configuration. ``Dhat``
is not a bound on the deviation, and a union bound over samples does not cover calls that were
picked for being hard (docs/paper.md, docs/closed_loop.md): for a promise use the machine's own
defaults and :func:`muninn.loop.escalated.certify_escalated`.
"""

from __future__ import annotations

from muninn.errors import InputError
from muninn.loop.escalation import VARIANTS, Escalation, Mode, PlanSource
from muninn.loop.request import Reply, Request, Screen, draw, screened
from muninn.model.schedule import FloatArray
from muninn.paper.policy import PaperRecord, ProbedPlanner
from muninn.record import Record

CANDIDATES = {"simulation": 4, "asv": 4, "uav": 3, "arm": 2}
"""The paper's M per platform."""


def rho_of(record: Record) -> FloatArray:
    """The signal of the paper, ``Dhat`` as a share of the tolerance, (batch,)."""
    if not isinstance(record, PaperRecord):
        raise InputError(
            f"rho is in records of muninn.paper.ProbedPlanner, not in a {type(record).__name__}; "
            "certified plans escalate by their rank, with muninn.loop.escalation.Escalation()"
        )
    return record.rho


def paper_escalation(
    candidates: int = CANDIDATES["simulation"],
    allowed: frozenset[Mode] = VARIANTS["combined"],
) -> Escalation:
    """The published thresholds; where full compute does not fit, the safety controller acts."""
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


def candidate_risk(risk: float, candidates: int) -> float:
    """Risk at which each of M samples is calibrated, ``alpha / M``.

    The envelope divides it by the eligible steps, ``alpha / (M |T_cache|)``: pass it to
    :func:`muninn.paper.fit_envelope`, which says how many calls that takes.

    >>> candidate_risk(0.05, 4)
    0.0125
    """
    if not 0.0 < risk < 1.0 or candidates < 1:
        raise InputError(
            f"risk lies between 0 and 1 and candidates is at least 1, got {risk} and {candidates}"
        )
    return risk / candidates


class PaperPrograms:
    """What the published method may be asked for.

    Args:
        cached: the policy at risk ``alpha``.
        resampled: the policy at risk ``alpha / M``, for multi-sample selection.
        screen: of the platform.
    """

    def __init__(self, cached: ProbedPlanner, resampled: ProbedPlanner, screen: Screen) -> None:
        self.cached = cached
        self.resampled = resampled
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
        if source == "cached":
            return self.cached
        if source == "resampled":
            return self.resampled
        if source == "full":
            return ProbedPlanner(
                self.cached.planner, self.cached.probe, self.cached.gate, eligible=()
            )
        raise InputError(f"the published method has no family, so no member {source}")
