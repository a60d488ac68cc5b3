"""Evaluate an outcome certificate: fresh episodes judge what was promised of episodes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from muninn.certify.betting import MeanEvidence
from muninn.certify.certificate import Certificate
from muninn.certify.journal import Journal
from muninn.certify.outcome_scan import OutcomeScan, scores
from muninn.certify.outcomes import Outcomes, OutcomeUnits
from muninn.certify.risk import wilson
from muninn.certify.scan import Measuring
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.parallel import Workers, workers_of
from muninn.progress import bars

LEVEL = 0.05
FEWEST = 30


@dataclass(frozen=True)
class OutcomeEvaluation:
    """What fresh episodes say about an outcome that was promised."""

    promise: str
    kind: str  # "harm" or "mean"
    units: int
    falls: int  # episodes whose score fell by more than the margin
    rises: int
    realised: float  # share of falls, or how much the mean fell: what the promise is about
    interval: tuple[float, float]  # 95% interval of it: Wilson's, or of the mean by Student's t
    promised: float  # at most
    p_value: float  # that it is above what was promised
    score: float  # mean, of the program
    score_full: float
    score_at_least: float  # what the certificate says of the program's own mean
    evaluations: float  # in the mean
    steps: int
    seed: int

    @property
    def kept(self) -> bool:
        """Whether these episodes are compatible with the promise, at the level of 5%."""
        return self.p_value >= LEVEL

    def sentence(self) -> str:
        """The judgement in one plain sentence."""
        low, high = self.interval
        what = f"in {self.falls} of {self.units} new episodes the score fell"
        if self.kind == "mean":
            what = f"the mean score of {self.units} new episodes fell by {self.realised:.3g}"
        return (
            f"{'Kept' if self.kept else 'Not kept'}: {what} (95% interval {low:.3g} to {high:.3g}, "
            f"p = {self.p_value:.2g}), and the promise was: {self.promise}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, the judgement included."""
        return {"kept": self.kept, "sentence": self.sentence(), **asdict(self)}


def evaluate_outcomes(
    planner: Planner,
    made: Certificate,
    outcomes: Outcomes,
    seed: int,
    workers: Workers,
    progress: bool,
) -> OutcomeEvaluation:
    """Judge an outcome certificate by fresh episodes, as :func:`muninn.evaluate` describes."""
    assert made.outcome is not None
    for name in ("promise", "margin", "low", "high"):
        if getattr(outcomes, name) != made.outcome[name]:
            raise InputError(
                f"the promise has {name}={made.outcome[name]!r}, these Outcomes have "
                f"{getattr(outcomes, name)!r}; give those of the calibration"
            )
    if outcomes.count < FEWEST:
        raise InputError(f"{outcomes.count} episodes judge nothing; give at least {FEWEST}")
    units = OutcomeUnits(planner, outcomes, seed, form=made.form, batches=made.together)
    measuring = Measuring(units, [(planner, made.questions)], [outcomes.run])
    with workers_of(workers, planner.device) as crew, bars(progress) as task:
        scan = OutcomeScan(units, measuring, Journal(), crew, task)
        full = scores(scan.all("full", scan.full, "test", outcomes.count))
        own = scan.all("certified", made.program, "test", outcomes.count)
    fall = full - scores(own)
    falls = int(np.sum(fall > outcomes.margin))
    if outcomes.promise == "harm":
        realised, promised = falls / len(fall), made.risk
        interval = wilson(falls, len(fall))
        p_value = float(stats.binomtest(falls, len(fall), promised, alternative="greater").pvalue)
    else:
        realised, promised = float(fall.mean()), outcomes.margin
        half = float(fall.std(ddof=1)) / math.sqrt(len(fall)) * stats.t.ppf(0.975, len(fall) - 1)
        interval = (realised - half, realised + half)
        spread = outcomes.high - outcomes.low
        evidence = MeanEvidence(-spread - promised, spread - promised)
        evidence.add(fall - promised)
        p_value = min(1.0, 1.0 / evidence.e_value)
    return OutcomeEvaluation(
        promise=made.promise(),
        kind=outcomes.promise,
        units=len(fall),
        falls=falls,
        rises=int(np.sum(-fall > outcomes.margin)),
        realised=realised,
        interval=interval,
        promised=promised,
        p_value=p_value,
        score=float(scores(own).mean()),
        score_full=float(full.mean()),
        score_at_least=made.outcome["score_at_least"],
        evaluations=float(np.concatenate([each.evaluations for each in own]).mean()),
        steps=made.identity["sampler"]["steps"],
        seed=seed,
    )
