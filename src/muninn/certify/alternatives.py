"""What a user would pick instead of the certified program, given what Muninn gets.

Each alternative is a published method with as many evaluations as the certified program needs. Its
spacing and its order are chosen on tuning calls, none of which judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muninn.certify.certificate import Certificate
from muninn.certify.frontier import Frontier
from muninn.certify.metrics import Metric, Tolerance
from muninn.certify.paired import PairedCalls
from muninn.certify.risk import order_statistic, wilson
from muninn.certify.units import Episodes, Outcome, Units, units_of
from muninn.context import Context, unlike
from muninn.errors import InputError
from muninn.identity.rows import count_marks, met_again, row_marks
from muninn.model.planner import Planner
from muninn.parallel import Map
from muninn.programs.methods import methods
from muninn.programs.plan import AnyProgram
from muninn.progress import Task

FEWSTEPS, TAYLOR, HEUN = "fewsteps", "taylor", "heun"
NAMES = (FEWSTEPS, "dpmsolver", "unipc", TAYLOR)
OF_FLOWS = ("adams", HEUN)
"""Alternatives of flows only: for a diffusion the solvers above were made from them."""

TITLES = {
    "muninn": "Muninn",
    "fewsteps": "fewer steps",
    "dpmsolver": "DPM-Solver++",
    "unipc": "UniPC",
    "taylor": "Taylor series",
    "adams": "Adams-Bashforth",
    "heun": "Heun",
}
FULL = "full compute"

TUNED_ON = 64
"""Calls that alternatives are tuned on at least, as far as there are so many; more where the
certificate's family had more."""

FEWEST = 16
"""Calls below which tuning means nothing."""


@dataclass(frozen=True)
class Alternative:
    """What one method does on the calls that judge a certificate."""

    method: str
    evaluations: int  # of a call
    program: str
    seconds: float  # median of a call of one row, in turns with the certified program
    within: float | None  # deviation that 95% of the calls stay below; None where too many failed
    violations: int  # units beyond the tolerance, those where it failed included
    interval: tuple[float, float]  # 95% Wilson interval of their share


def allowed_share(made: Certificate) -> float:
    """The share of calls beyond the tolerance at which a certificate is still given."""
    certify = made.counts["certify"]
    return (order_statistic(certify, made.risk, made.confidence) - 1) / certify


def matched_evaluations(mean: float) -> int:
    """Evaluations of the alternatives: Muninn's mean, rounded up, so that they get no fewer."""
    return max(2, math.ceil(mean - 1e-9))


def available(planner: Planner) -> tuple[str, ...]:
    """The alternatives that a planner has; of a stochastic sampler those with its own noise."""
    groups = {method.group for method in methods(planner.sampler).values()}
    offered = (*NAMES, *OF_FLOWS) if planner.sampler.flow else NAMES
    return tuple(name for name in offered if name in groups)


def calls_to_tune_on(
    planner: Planner,
    made: Certificate,
    calls: Context | int,
    judging: Units,
    terms: tuple[Metric, Tolerance],
    reference: Planner | None,
) -> PairedCalls:
    """As many of the calls as tuned the certificate's family, spread over them, with new noise.

    Raises:
        InputError: the loop is closed, calls are too few, or some of them judge.
    """
    if judging.loop == "closed" or isinstance(calls, Episodes):
        raise InputError(
            "a comparison needs given calls: in a closed loop every method drives episodes of its "
            "own, which only a study of the task can compare. Leave compare out"
        )
    own = units_of(planner, calls, *terms, "call", None, made.seed + 1, made.batch_size, reference)
    if own.form != judging.form:
        told = unlike(judging.form, own.form) if judging.form and own.form else "give contexts"
        raise InputError(f"compare is of another form than the calls that judge: {told}")
    if met := met_again(row_marks(judging.rows(range(judging.count))), own.rows(range(own.count))):
        raise InputError(
            f"{met} of the calls in compare also judge: give others, or tuning would see them"
        )
    if own.count < FEWEST:
        raise InputError(
            f"{own.count} calls are too few to tune alternatives on: give at least {FEWEST} that "
            "do not judge"
        )
    tuned_on = count_marks(made.family.tuned_on) or made.counts["tune"]  # calls, or units
    count = min(own.count, max(TUNED_ON, tuned_on))
    return own.for_tuning(np.linspace(0, own.count - 1, count).round().astype(int).tolist())


def tuned(
    tuning: PairedCalls,
    made: Certificate,
    tolerance: Tolerance,
    evaluations: int,
    crew: Map,
    task: Task,
) -> dict[str, AnyProgram]:
    """The best table of every alternative with so many evaluations; Heun's number is odd.

    Empty where the sampler has no more steps than that, or no table fits the planner.
    """
    planner = tuning.planner
    if evaluations >= len(planner.sampler):
        return {}
    share = allowed_share(made)
    names, advance = available(planner), task("compare: programs tried", None)
    together = Frontier(tuning, tolerance, share, advance=advance, workers=crew, groups=names)
    groups = {method.group for method in together.methods.values()}
    found: dict[str, AnyProgram] = {}
    for name in (name for name in names if name in groups):
        frontier, count = together.restricted({name}), evaluations | (name == HEUN)
        if frontier.offers(count):
            found[TITLES[name]] = frontier.best(count).program
    return found


def measured(
    method: str, program: AnyProgram, steps: int, outcomes: Sequence[Outcome], seconds: float
) -> Alternative:
    """The figures of an alternative from what it did with the units that judge.

    Where it failed, full compute ran instead, which is not to its credit.
    """
    failures = [np.isnan(outcome.estimate).any() for outcome in outcomes]
    beyond = sum(
        failed or outcome.excess > 1.0 for failed, outcome in zip(failures, outcomes, strict=True)
    )
    deviations = np.concatenate(
        [np.where(np.isnan(each.estimate), np.inf, each.deviation) for each in outcomes]
    )
    with np.errstate(invalid="ignore"):  # of failures alone
        within = float(np.quantile(deviations, 0.95))
    return Alternative(
        method,
        program.most_evaluations(steps),
        str(program),
        seconds,
        within if math.isfinite(within) else None,
        int(beyond),
        wilson(int(beyond), len(outcomes)),
    )
