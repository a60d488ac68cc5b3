"""Certify an outcome: episodes of full compute and of each program, on the same worlds and noise.

The proofs are in docs/certificate.md. In short: members are tested from conservative to aggressive,
each by its own episodes, and the scan stops at the first that is not proven; so the last proven one
keeps the promise with the chosen confidence, whatever the family. ``harm`` counts episodes, whose
number is fixed beforehand. ``mean`` bets on the differences, and stops as soon as they prove it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from muninn.certify.betting import MeanEvidence, lower_limit, needed
from muninn.certify.frontier import Frontier, ladder
from muninn.certify.journal import Journal
from muninn.certify.metrics import Metric
from muninn.certify.outcomes import Outcomes, OutcomeUnits, Scored, Stream
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import require_units, units_needed
from muninn.certify.scan import Measuring
from muninn.context import Context, concatenate
from muninn.errors import CalibrationError
from muninn.identity.rows import row_marks
from muninn.model.schedule import FloatArray
from muninn.parallel import Map
from muninn.programs.plan import AnyProgram, Family, Program
from muninn.progress import Task, silent

PROMISED = 0.8
"""Of the allowed probability to err for the promise; the rest for the program's own mean score."""

COUNTS = (40, 28, 20, 14, 10, 8, 7, 6, 5, 4, 3, 2)
START, AROUND, FAR = 8, 2, 3.0
"""Evaluations with which the search begins; members on either side of the fewest that tuning
episodes allow; evaluations of the first member over it."""

CALLS = 256
"""Calls of tuning episodes that programs are compared on."""

REPEATED = 3
"""Episodes that full compute drives twice, to see whether it ends the same."""


@dataclass
class OutcomeScan:
    """Runs episodes chunk by chunk; finished ones are in the journal."""

    units: OutcomeUnits
    measuring: Measuring
    journal: Journal
    workers: Map
    task: Task

    def __post_init__(self) -> None:
        self.full = Program.full(self.units.planner.sampler.kind)

    def episodes(
        self, name: str, program: AnyProgram, stream: Stream, count: int, *, twice: bool = False
    ) -> Iterator[list[Scored]]:
        """Chunks of the first episodes of a stream, from the journal as far as they are there."""
        chunk, again = self.units.chunk, "/again" * twice
        key = f"episodes/{stream}/{program.digest}{again}"
        chunks = [range(at, min(at + chunk, count)) for at in range(0, count, chunk)]
        missing = [[k for k in own if self.journal.get(f"{key}/{k}") is None] for own in chunks]
        to_run = [(program, stream, own) for own in missing if own]
        advance = self.task(f"{stream}: {name}", count) if to_run else silent
        fresh = self.workers.map(self.measuring, to_run) if to_run else iter(())
        for own, lacking in zip(chunks, missing, strict=True):
            if lacking:
                pairs = zip(lacking, next(fresh)[0], strict=True)
                self.journal.put_all({f"{key}/{k}": asdict(scored) for k, scored in pairs})
            advance(len(own))
            yield [Scored(**self.journal.get(f"{key}/{k}")) for k in own]

    def all(self, name: str, program: AnyProgram, stream: Stream, count: int) -> list[Scored]:
        """All of them at once."""
        return [each for chunk in self.episodes(name, program, stream, count) for each in chunk]

    # -- before ------------------------------------------------------------------------------

    def ruler(self) -> dict[str, Any]:
        """Full compute against itself on the tuning worlds: with the same noise, and with other.

        Robots are chaotic: what other noise changes is what no promise need be better than.
        """
        outcomes = self.units.outcomes
        first = scores(self.all("full", self.full, "tune", outcomes.tune))
        few = min(REPEATED, outcomes.tune)
        chunks = self.episodes("full", self.full, "tune", few, twice=True)
        again = scores([each for chunk in chunks for each in chunk])
        other = scores(self.all("full", self.full, "other noise", outcomes.tune))
        return {
            "episodes": outcomes.tune,
            "falls": int(np.sum(first - other > outcomes.margin)),
            "rises": int(np.sum(other - first > outcomes.margin)),
            "repeats": bool(np.array_equal(first[:few], again)),
        }

    def family(
        self,
        contexts: list[Context],
        metric: Metric,
        risk: float,
        groups: Collection[str] | None = None,
    ) -> Family:
        """Tables ordered by evaluations, around the fewest that tuning episodes allow.

        Which table stands for a number of evaluations is decided by its deviation, in ``metric``,
        from full compute: that takes calls, not episodes. ``groups`` are the methods to choose
        from, as in :class:`muninn.certify.frontier.Frontier`.
        """
        planner, seed = self.units.planner, call_seed(self.units.seed, 8)
        places = np.linspace(0, len(contexts) - 1, min(CALLS, len(contexts))).round().astype(int)
        chosen = concatenate([contexts[place] for place in dict.fromkeys(places.tolist())])
        paired = PairedCalls(planner, chosen, len(set(places.tolist())), metric, seed)
        advance = self.task("tune: programs tried", None)
        # Here, not by workers: episodes take far longer, and a metric need not be sent.
        frontier = Frontier(paired, 1.0, 0.05, self.journal, advance, groups=groups)
        offered = [k for k in ladder(frontier.steps) if k in COUNTS and frontier.offers(k)]
        if not offered:
            raise CalibrationError(
                "no program with fewer evaluations was found for this planner; use it as it is"
            )
        full = scores(self.all("full", self.full, "tune", self.units.outcomes.tune))

        def allowed(place: int) -> bool:
            count = offered[place]
            program = frontier.best(count, move=False).program
            tried = scores(self.all(f"{count} evaluations", program, "tune", len(full)))
            fall = full - tried
            if self.units.outcomes.promise == "harm":
                return int(np.sum(fall > self.units.outcomes.margin)) <= risk * len(full)
            return float(fall.mean()) <= self.units.outcomes.margin

        at = min(range(len(offered)), key=lambda k: abs(offered[k] - START))
        while at > 0 and not allowed(at):
            at -= 1
        while at + 1 < len(offered) and allowed(at + 1):
            at += 1
        far = min(range(len(offered)), key=lambda k: abs(offered[k] - FAR * offered[at]))
        members = sorted({far, *range(max(0, at - AROUND), min(len(offered), at + AROUND + 1))})
        programs = [frontier.best(offered[place], move=False).program for place in members]
        report = {"evaluations": offered[at], "notes": frontier.notes}
        return Family((self.full, *dict.fromkeys(programs)), "frontier", report, row_marks(chosen))

    # -- the promise -------------------------------------------------------------------------

    def certify(
        self, family: Family, risk: float, confidence: float
    ) -> tuple[int, float, list[Scored], list[dict[str, Any]]]:
        """The last proven member, a lower limit of its mean score, its episodes, all figures."""
        outcomes, err = self.units.outcomes, 1.0 - confidence
        proof = 1.0 / (PROMISED * err)
        allowed = allowed_falls(outcomes, risk, confidence)
        full: list[Scored] = []
        source = self.episodes("full", self.full, "certify", outcomes.count)

        def of_full(count: int) -> FloatArray:
            while len(full) < count:
                full.extend(next(source))
            return scores(full[:count])

        seen: list[Scored] = []
        rows, member = [], 0
        for index, program in enumerate(family.programs[1:], 1):
            own: list[Scored] = []
            fall, accepted = np.zeros(0), False
            name = f"member {index} of {len(family) - 1}"
            evidence = None if outcomes.promise == "harm" else self._evidence(name, program)
            for chunk in self.episodes(name, program, "certify", outcomes.count):
                own += chunk
                fall = of_full(len(own)) - scores(own)
                if evidence is not None:
                    evidence.add(outcomes.margin - fall[-len(chunk) :])
                    accepted = evidence.e_value >= proof
                else:
                    accepted = int(np.sum(fall > outcomes.margin)) <= allowed
                if accepted == (evidence is not None):
                    break  # proven; or refuted, since more episodes can only add falls
            rows.append(_row(index, own, fall, outcomes, accepted, evidence, 1.0 / proof))
            if not accepted:
                break
            member, seen = index, own
        if not member:
            of_full(outcomes.count)
            seen = full
        # Any member might have been the last: a lower limit for each.
        level = (1.0 - PROMISED) * err / len(family)
        known, ends = scores(seen), (outcomes.low, outcomes.high)
        return member, lower_limit(known, *ends, level), seen, rows

    def _evidence(self, name: str, program: AnyProgram) -> MeanEvidence:
        """Nothing yet; bets begin with what the program did in tuning episodes."""
        outcomes = self.units.outcomes
        spread, margin = outcomes.high - outcomes.low, outcomes.margin
        full = scores(self.all("full", self.full, "tune", outcomes.tune))
        own = scores(self.all(name, program, "tune", outcomes.tune))
        return MeanEvidence(margin - spread, margin + spread, like=(full - own).tolist())


def _row(
    member: int,
    own: list[Scored],
    fall: FloatArray,
    outcomes: Outcomes,
    accepted: bool,
    evidence: MeanEvidence | None,
    level: float,
) -> dict[str, Any]:
    """Figures of one member on the episodes that were run."""
    evaluations = np.concatenate([each.evaluations for each in own])
    flips = float(np.mean(np.abs(fall)) / (outcomes.high - outcomes.low))
    more = None
    if outcomes.promise == "mean" and not accepted and fall.mean() < outcomes.margin:
        more = needed(
            outcomes.margin - max(float(fall.mean()), 0.0),
            outcomes.high - outcomes.low,
            level,
            flips,
        )
    return {
        "member": member,
        "accepted": accepted,
        "units": len(own),
        "violations": int(np.sum(fall > outcomes.margin)),
        "rises": int(np.sum(-fall > outcomes.margin)),
        "fall_mean": float(fall.mean()),
        "score_mean": float(scores(own).mean()),
        "e_value": None if evidence is None else evidence.e_value,
        "evaluations_mean": float(evaluations.mean()),
        "evaluations_max": int(evaluations.max()),
        "fallbacks": int(sum(np.isnan(each.estimate).sum() for each in own)),
        "episodes_to_prove": more,
    }


def scores(episodes: list[Scored]) -> FloatArray:
    """The scores of episodes."""
    return np.array([each.score for each in episodes], dtype=np.float64)


def allowed_falls(outcomes: Outcomes, risk: float, confidence: float) -> int:
    """How many of the episodes may fall by more than the margin; any where the mean is promised.

    Raises:
        CalibrationError: so few episodes prove nothing, even where nothing changes.
    """
    err = PROMISED * (1.0 - confidence)
    if outcomes.promise == "harm":
        return require_units(outcomes.count, risk, 1.0 - err, "episodes") - 1
    fewest = needed(outcomes.margin, outcomes.high - outcomes.low, err)
    if fewest is None or outcomes.count < fewest:
        raise CalibrationError(
            f"{outcomes.count} episodes cannot prove a margin of {outcomes.margin:g} at confidence "
            f"{confidence:g}: it takes about {fewest or 'more than 100,000'} even if no outcome "
            "changes. Give more, or accept a wider margin"
        )
    return outcomes.count


def episodes_needed(outcomes: Outcomes, risk: float = 0.05, confidence: float = 0.95) -> str:
    """What to expect before anything runs, in a sentence."""
    err = PROMISED * (1.0 - confidence)
    if outcomes.promise == "harm":
        fewest = units_needed(risk, 1.0 - err)
        return f"about {fewest} episodes prove a risk of {risk:.1%} if no score falls"
    spread = outcomes.high - outcomes.low
    calm, lively = (needed(outcomes.margin, spread, err, flips) for flips in (0.0, 0.05))
    return (
        f"about {calm} episodes prove a margin of {outcomes.margin:g} if nothing changes, "
        f"{lively or 'more than 100,000'} if 5% of the outcomes do, in both directions"
    )
