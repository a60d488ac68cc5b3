"""Evaluate: fresh calls judge whether a certificate's promise is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.alternatives import (
    FULL,
    Alternative,
    calls_to_tune_on,
    matched_evaluations,
    measured,
    tuned,
)
from muninn.certify.cached import cache
from muninn.certify.calibrate import whole
from muninn.certify.certificate import Certificate, differences
from muninn.certify.evaluate_outcomes import OutcomeEvaluation, evaluate_outcomes
from muninn.certify.metrics import Metric, Tolerance
from muninn.certify.outcomes import Outcomes
from muninn.certify.paired import median_seconds
from muninn.certify.risk import excess_p_value, units_needed, wilson
from muninn.certify.scan import Informed, Measuring
from muninn.certify.sources import gather
from muninn.certify.units import Episodes, Outcome, UnitName, units_of
from muninn.context import Context
from muninn.engines.choose import runtime_for
from muninn.errors import CertificateError, InputError
from muninn.identity.rows import met_again
from muninn.model.planner import Planner, require_planner
from muninn.parallel import Workers, workers_of
from muninn.programs.plan import AnyProgram
from muninn.progress import bars

LEVEL = 0.05
"""A promise counts as broken where one that is kept gives so many violations more rarely."""

TIMED = 22  # calls of each, one of them to warm up


@dataclass(frozen=True)
class Evaluation:
    """What fresh calls say about a promise."""

    promise: str
    unit: str  # "call" or "episode"
    units: int
    violations: int  # units beyond the tolerance
    risk: float  # share of violations that was promised
    interval: tuple[float, float]  # 95% Wilson interval of the share
    p_value: float  # exact, that the share is above the risk
    deviation: dict[str, float]  # quantiles over calls: p50, p95, p99 and max
    evaluations: float  # of the certified program, in the mean; full compute takes ``steps``
    steps: int
    seconds: dict[str, float]
    """Median of a call of one row, ``full`` and ``certified``, on the planner's engine, measured in
    turns. Times include the check that the network matches its certificate."""
    coverage: float  # share of units within the per-call bound; 1 - risk was promised on average
    seed: int  # of the noise
    alternatives: list[Alternative] = field(default_factory=list)
    """Full compute, and published methods with as many evaluations; empty without ``compare``."""
    compared_on: int = 0  # calls that the published methods were tuned on
    evaluations_most: int = 0  # of any call
    slower: float = 0.0  # share of calls with more evaluations than full compute

    @property
    def kept(self) -> bool:
        """Whether these calls are compatible with the promise, at the level of 5%."""
        return self.p_value >= LEVEL

    def sentence(self) -> str:
        """The judgement in one plain sentence."""
        share, (low, high) = self.violations / self.units, self.interval
        verdict, doubt = "Kept", ""
        if share > self.risk:
            verdict = "Not refuted" if self.kept else "Not kept"
            doubt = f", p = {self.p_value:.2g} if the promise is true"
        return (
            f"{verdict}: {self.violations} of {self.units} new "
            f"{self.unit}s went beyond the tolerance ({share:.1%}, 95% interval {low:.1%} to "
            f"{high:.1%}{doubt}), and the promise was: {self.promise}"
        )

    def __str__(self) -> str:
        return self.sentence()

    def to_json(self) -> dict[str, Any]:
        """Plain values, the judgement included."""
        return {"kept": self.kept, "sentence": self.sentence(), **asdict(self)}


def evaluate(
    planner: Planner,
    certificate: Certificate | str | Path,
    contexts: Context | Episodes | Outcomes | int,
    *,
    metric: Metric | None = None,
    tolerance: Tolerance | None = None,
    reference: Planner | None = None,
    episode_of: Sequence[int] | None = None,
    compare: Context | int | None = None,
    seed: int | None = None,
    workers: Workers = None,
    progress: bool = True,
) -> Evaluation | OutcomeEvaluation:
    """Judge a certificate by fresh calls, full compute and its program paired on the same noise.

    Args:
        planner: what is deployed.
        certificate: its certificate, or the path of the file.
        contexts: like those to come, and unseen by calibration; as in :func:`muninn.calibrate`.
            Where an outcome was promised: :class:`muninn.Outcomes` with as many episodes as wanted.
        metric, tolerance: where they are functions: a certificate keeps their names only.
        reference, episode_of: what calibration was given.
        compare: calls on which published methods are tuned, to be run beside the certified program
            on the calls that judge; those of the calibration may be among them, none that judges
            (:attr:`Evaluation.alternatives`).
        seed: of the noise; by default one more than that of the calibration.
        workers: who runs calls and episodes, as in :func:`muninn.calibrate`.
        progress: show a progress bar.

    Raises:
        InputError: too few units (the message says how many are needed), or they are those of
            the calibration; an argument does not fit the certificate.
        CertificateError: the certificate was made for another planner, or other contexts.
    """
    order = "muninn.evaluate(planner, certificate, contexts)"
    require_planner(planner, order)
    if not isinstance(certificate, Certificate | str | PathLike):
        kind = type(certificate).__name__
        raise InputError(
            f"certificate is a Certificate or the path of its file, got {kind}; "
            f"the order is {order}"
        )
    fast = cache(planner, certificate)
    made = fast.certificate
    assert made is not None  # a mismatch is an error
    seed = made.seed + 1 if seed is None else whole("seed", seed)
    if isinstance(contexts, Outcomes) != (made.outcome is not None):
        wanted = "an outcome: give muninn.Outcomes" if made.outcome else "a deviation: give calls"
        raise InputError(f"this certificate promises {wanted}")
    if isinstance(contexts, Outcomes):
        if compare is not None:
            raise InputError(
                "a comparison needs a certificate of calls: an outcome is judged by episodes that "
                "every method would drive itself. Leave compare out"
            )
        if seed == made.seed:
            raise InputError(f"seed {seed} is that of the calibration; take another")
        return evaluate_outcomes(planner, made, contexts, seed, workers, progress)
    contexts = gather(contexts) if isinstance(contexts, Iterator) else contexts
    _require_fresh(made, contexts, seed)
    deviation, limit = made.terms(metric, tolerance)
    truth = None if reference is None else reference.identity()
    if found := differences("", {"reference": made.reference}, {"reference": truth}):
        raise CertificateError(f"reference: {'; '.join(found)}; pass the one of calibration")
    unit: UnitName = "call" if made.unit == "call" else "episode"
    units = units_of(
        planner, contexts, deviation, limit, unit, episode_of, seed, made.batch_size, reference
    )
    if met := _met(made, units.rows(range(units.count))):
        used = (
            "contexts were calibrated or tuned on: only new ones can judge the certificate (the "
            "command's --calls N takes the last N)"
        )
        if units.loop == "closed":  # another seed than the certificate's, but its family's
            used = f"episodes chose the certificate's family: seed {seed} is theirs, take another"
        raise InputError(f"{met} of these {used}")
    needed = units_needed(made.risk, made.confidence or 0.95)
    if units.count < needed:
        raise InputError(
            f"{units.count} {unit}s cannot judge a risk of {made.risk:g}: give at least "
            f"{needed} new ones, fewer do not show it even without a violation"
        )
    tuning = None
    if compare is not None:
        terms = deviation, limit
        tuning = calls_to_tune_on(planner, made, compare, units, terms, reference)
    timed = units.examples(TIMED)
    if (reason := fast.other_arithmetic or fast.misfit(timed[0], 1)) is not None:
        fast.refuse(reason)
    networks = [(planner, made.questions), *([] if reference is None else [(reference, None)])]
    informed = Informed(Measuring(units, networks, [deviation, limit]))
    starts = range(0, units.count, units.chunk)
    chunks = [range(at, min(at + units.chunk, units.count)) for at in starts]
    plans: dict[str, AnyProgram] = {FULL: made.family.member(0)}
    with workers_of(workers, planner.device) as crew, bars(progress) as task:

        def run(program: AnyProgram, title: str) -> list[Outcome]:
            advance, outcomes = task(title, units.count), list[Outcome]()
            items = ((units.full_of(chunk), program, chunk) for chunk in chunks)
            for own, full in crew.map(informed, items):
                units.known.update(full)  # the next program is measured against them
                outcomes += own
                advance(len(own))
            return outcomes

        outcomes = run(made.program, f"evaluate {unit}s")
        spent = np.concatenate([each.evaluations for each in outcomes])
        evaluations, steps = float(spent.mean()), len(planner.sampler)
        others: dict[str, list[Outcome]] = {}
        if tuning is not None:
            plans |= tuned(tuning, made, limit, matched_evaluations(evaluations), crew, task)
            others = {name: run(program, f"compare {name}") for name, program in plans.items()}
    runs: list[Callable[..., object]] = [runtime_for(planner, each) for each in plans.values()]
    certified, *rest = median_seconds([fast, *runs], *timed)
    seconds = dict(zip(plans, rest, strict=True))
    violations = sum(outcome.excess > 1.0 for outcome in outcomes)
    deviations = np.concatenate([outcome.deviation for outcome in outcomes])
    bound = made.bound
    assert bound is not None  # a deviation was promised
    covered = [np.all(each.deviation <= bound(np.array(each.estimate))) for each in outcomes]
    marginal_units = made.counts["certify"] if made.confidence is None else None
    return Evaluation(
        promise=made.promise(),
        unit=made.unit,
        units=units.count,
        violations=violations,
        risk=made.risk,
        interval=wilson(violations, units.count),
        p_value=excess_p_value(violations, units.count, made.risk, marginal_units),
        deviation={
            name: float(np.quantile(deviations, share))
            for name, share in {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}.items()
        },
        evaluations=evaluations,
        steps=steps,
        evaluations_most=int(spent.max()),
        slower=float(np.mean(spent > steps)),
        seconds={"full": seconds[FULL], "certified": certified},
        coverage=float(np.mean(covered)),
        seed=seed,
        alternatives=[
            measured(name, plans[name], steps, found, seconds[name])
            for name, found in others.items()
        ],
        compared_on=0 if tuning is None else tuning.count,
    )


def _met(made: Certificate, contexts: Context) -> int:
    """How many contexts, or seeds of episodes, made the certificate or chose its family."""
    used = (made.calibrated_on, made.family.tuned_on)
    return max(met_again(marks, contexts) for marks in used)


def _require_fresh(made: Certificate, contexts: Context | Episodes | int, seed: int) -> None:
    """Raise InputError where calls are of another loop than calibrated, or have its seed."""
    if isinstance(contexts, Episodes) != (made.loop == "closed"):
        wanted = "muninn.Episodes" if made.loop == "closed" else "contexts, or a number of calls"
        raise InputError(f"this is a certificate of the {made.loop} loop: give {wanted}")
    if seed == made.seed:
        raise InputError(f"seed {seed} is that of the calibration; take another for fresh calls")
