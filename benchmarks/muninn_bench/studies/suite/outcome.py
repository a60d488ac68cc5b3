"""The certificate of the mean score: the library's own scan, on episodes that drive in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muninn.certify.journal import Journal
from muninn.certify.metrics import resolve
from muninn.certify.outcome_scan import OutcomeScan
from muninn.certify.outcomes import Outcomes, OutcomeUnits, Scored
from muninn.certify.outcomes import Stream as Purpose
from muninn.certify.scan import Measuring
from muninn.errors import CalibrationError
from muninn.parallel import Map
from muninn.programs.plan import AnyProgram, Program
from muninn.progress import Task as Bars
from muninn_bench.studies.suite.drives import Drives
from muninn_bench.studies.suite.entrants import CONFIDENCE, FULL, RISK, Entrant
from muninn_bench.studies.suite.promises import even_family
from muninn_bench.task import Stream

POINTS = (0.0, 120.0)
"""Range of the promised score; what lies beyond counts as its end."""

MARGIN = 2.0
"""Points by which the mean score may fall."""

_STREAMS: dict[Purpose, Stream] = {"tune": Stream.TUNE, "certify": Stream.CERTIFY}


def _never(plan: object, seed: int) -> float:
    raise NotImplementedError("episodes run in lockstep, not one by one")


@dataclass(eq=False)
class LockstepUnits(OutcomeUnits):
    """Episodes as the scan asks for them, driven by :class:`Drives` instead of one by one."""

    drives: Drives | None = None

    def measure(
        self, program: AnyProgram, stream: Purpose, episodes: Sequence[int]
    ) -> list[Scored]:
        """Some consecutive episodes of a stream, driven by a program."""
        assert self.drives is not None
        full = Program.full(self.planner.sampler.kind)
        entrant = FULL if program == full else Entrant.of(program)
        driven = self.drives.of(
            "for the mean score", entrant, _STREAMS[stream], len(episodes), episodes[0]
        )
        spent = driven.evaluations.round().astype(int).tolist()
        scores = np.clip(driven.score, *POINTS).tolist()
        return [Scored(score, [own], [0.0]) for score, own in zip(scores, spent, strict=True)]


def mean_score_program(
    drives: Drives,
    journal: Journal,
    bar: Bars,
    *,
    tune: int,
    certify: int,
    together: int,
    margin: float = MARGIN,
    tuned: bool = True,
) -> AnyProgram | None:
    """The program with the fewest evaluations whose mean score is proven to fall by at most the
    margin; None is full compute.

    ``together`` episodes are driven before the evidence is looked at.
    """
    site = drives.site
    asked = Outcomes(_never, certify, "mean", margin, *POINTS, together=together, tune=tune)
    units = LockstepUnits(site.planner, asked, drives.seed, drives=drives)
    scan = OutcomeScan(units, Measuring(units), journal, Map(), bar)
    met = drives.of("for the mean score", FULL, Stream.TUNE, tune).contexts
    contexts = [row[None] for row in met.flatten(0, 1).to(site.planner.device)]
    metric = resolve(site.task.metric(site.variant))[1]
    try:
        even = None if tuned else even_family(site.planner, None)
        family = even or scan.family(contexts, metric, RISK)
        member, *_ = scan.certify(family, RISK, CONFIDENCE)
    except CalibrationError:  # too few episodes, or no program with fewer evaluations
        return None
    return family.member(member) if member else None
