"""Survey: how few evaluations at which deviation, before anybody chooses a tolerance.

It touches only the calls that :func:`muninn.calibrate` would tune on under the same seed: a
tolerance that was chosen by looking at certify calls would void the promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from muninn.certify.calibrate import number, split_units, whole
from muninn.certify.examine import require_eval
from muninn.certify.expected import (
    allowance,
    below,
    certifiable,
    hangs_on_one_call,
    likelihood,
    strayed,
)
from muninn.certify.frontier import Frontier, ladder
from muninn.certify.metrics import (
    Judge,
    Metric,
    measure,
    one_each,
    require_tolerance,
    resolve,
)
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.surveyed import COUNTS, RIVALS, Row, Survey
from muninn.certify.units import Episodes, UnitName, Units, units_of
from muninn.context import Context
from muninn.engines.choose import runtime_for
from muninn.errors import InputError
from muninn.model.planner import Planner, require_planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers, workers_of
from muninn.programs.plan import AnyProgram
from muninn.programs.spacing import sampler_states
from muninn.progress import bars

CALLS = 64
"""Most tuning calls that are looked at."""

SHARE = 0.05
"""Of calls that a deviation leaves out: deviations are those that 95% of the calls stay below."""

FAR_APART = 0.9
"""Quantile of the distance between two noises: where there are two ways, half of the noises take
the same one."""

FEW = 8
"""Calls that show rounding."""


def survey(
    planner: Planner,
    contexts: Context | Episodes | int,
    *,
    metric: str | Metric = "rms_step",
    tolerance: float | None = None,
    check: Judge | None = None,
    risk: float = 0.05,
    confidence: float | None = 0.95,
    episode_of: Sequence[int] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    workers: Workers = None,
    progress: bool = True,
) -> Survey:
    """How few evaluations a planner needs, at which deviation from full compute.

    Args:
        planner: what will be deployed.
        contexts: those that will be given to :func:`muninn.calibrate`, or how many calls, or its
            episodes.
        metric, risk, confidence, seed, batch_size: as in :func:`muninn.calibrate`; contexts, risk
            and seed fix the calls that tuning may see, and only those are looked at; a family that
            is given to calibrating leaves none for tuning, and needs other calls. The metric may
            name its unit in an attribute ``unit``.
        tolerance: the share of calls beyond it is shown instead of deviations, and how probably it
            is certified; in the unit of the metric.
        episode_of: episode number of each call, if calibrating will be given it: whole episodes are
            for tuning then. What will be certified of episodes is not estimated.
        check: ``check(plan, context) -> (batch,)``, whether plans are good, as in
            :func:`muninn.certify.metrics.harm`: how many are, at which number of evaluations.
        workers: who tries programs, as in :func:`muninn.calibrate`; tables are fitted here.
        progress: show a progress bar.

    Raises:
        InputError: an argument does not fit, or the network is in train mode.
        CalibrationError: too few calls for the risk; says how many are needed.
    """
    require_planner(planner, "muninn.survey(planner, contexts)")
    require_eval(planner)
    name, deviation = resolve(metric)
    if tolerance is not None:
        tolerance = require_tolerance(number("tolerance", tolerance))
    seed, batch = whole("seed", seed), whole("batch_size", batch_size, at_least=1)
    kind: UnitName = "call" if episode_of is None else "episode"
    units = units_of(planner, contexts, deviation, 1.0, kind, episode_of, seed, batch, None)
    # The promise of an episode is about its worst call, which single calls do not tell.
    given = units.count if units.loop == "open" and episode_of is None else 0
    allowed = allowance(given, risk, confidence)
    paired = _tuning_calls(units, risk, seed)
    rows: list[Row] = []
    with workers_of(workers, planner.device) as crew, bars(progress) as task:
        advance = task("survey: programs tried", None)
        frontier = Frontier(paired, 1.0, SHARE, advance=advance, workers=crew)
        if not frontier.methods:
            raise InputError(
                "a survey compares tables of weights, and none fits this planner: its condition "
                "does more than overwrite entries. muninn.calibrate tries gates for it"
            )
        counts = [count for count in ladder(len(planner.sampler)) if count in COUNTS]
        ways = {"muninn": frontier} | {
            rival: frontier.restricted({rival})
            for rival in RIVALS
            if any(method.group == rival for method in frontier.methods.values())
        }
        apart = _apart(frontier)
        far = float(np.quantile(apart, FAR_APART))
        for method, way in ways.items():
            for count in sorted(counts, key=lambda count: abs(math.log(count / 8))):
                best = way.best(count, move=False)
                passed = None if check is None else _passed(paired, best.program, check)
                found, counted = way.excess_of(best), way.counted
                terms = given, risk, confidence
                beyond = likely = None
                if tolerance is not None:
                    beyond = float(counted @ (found > tolerance)) / len(found)
                    likely = float(likelihood(found, counted, np.array([tolerance]), *terms)[0])
                rows.append(
                    Row(
                        method,
                        count,
                        below(found, counted, SHARE),
                        str(best.program),
                        passed,
                        certifiable(found, counted, *terms),
                        beyond=beyond,
                        likely=likely if allowed[1] >= 0 else None,
                        one_call=hangs_on_one_call(found, counted, *terms),
                        median=float(np.median(found)),
                        strayed=strayed(found, counted, far),
                    )
                )
        passed = None if check is None else _passed(paired, None, check)
        marks, unit = _marks(frontier, apart), str(getattr(deviation, "unit", ""))
    rows.sort(key=lambda row: (list(ways).index(row.method), row.evaluations))
    return Survey(
        name, len(planner.sampler), paired.count, rows, *marks, unit, passed,
        given, *allowed, tolerance, weighted=bool(np.ptp(frontier.counted) > 0.0),
    )  # fmt: skip


def _tuning_calls(units: Units, risk: float, seed: int) -> PairedCalls:
    """Calls that calibrating would tune on, spread over them where episodes have many.

    Raises:
        CalibrationError: too few calls or episodes for the risk.
    """
    split = split_units(units.count, risk, None, tune=True, seed=seed)
    paired = units.for_tuning(split["tune"][:CALLS])
    if paired.count <= CALLS:
        return paired
    places = np.linspace(0, paired.count - 1, CALLS).round().astype(int).tolist()
    return replace(paired, context=paired.contexts(places), count=CALLS)


def _passed(paired: PairedCalls, program: AnyProgram | None, check: Judge) -> float:
    """The share of plans that pass a check, of a program, or of full compute, which is known."""
    calls = list(range(paired.count))
    if program is None:
        plans = paired.full(calls)
    else:
        plans, _ = runtime_for(paired.planner, program)(paired.context, noise=paired.noise(calls))
    return float(one_each("check", check(plans, paired.context), len(calls)).mean())


def _apart(frontier: Frontier) -> FloatArray:
    """How far the plans of two noises are apart, in some calls."""
    paired: PairedCalls = frontier.paired
    calls = list(range(min(4 * FEW, paired.count)))
    other = replace(paired, seed=call_seed(paired.seed, 3), known={})
    return measure(paired.metric, paired.full(calls), other.full(calls), paired.contexts(calls))


def _marks(frontier: Frontier, apart: FloatArray) -> tuple[float, float | None, float]:
    """Rounding, the sampler's step-size error, and the spread between two noises."""
    paired: PairedCalls = frontier.paired
    few = list(range(min(FEW, paired.count)))
    alone = replace(paired, batch=1, known={})
    single = torch.cat([alone.full([call]) for call in few])
    rounding = float(measure(paired.metric, paired.full(few), single, paired.contexts(few)).max())
    sampler, fine = paired.planner.sampler, None
    for solver in ("dpmsolver-3", "adams-3"):
        if solver in frontier.methods:
            table = frontier.methods[solver].build(sampler, sampler_states(sampler))
            fine = float(np.median(frontier.excess(table, 4 * FEW)[:-1]))
            break
    return rounding, fine, float(np.median(apart))
