"""Certify: choose the most aggressive program whose whole-call deviation keeps the promise.

The proof is in docs/certificate.md. In short: the family is scanned from conservative to
aggressive, each member is tested by its own count of violations, and the scan stops at the first
that fails; the marginal version counts the running maximum instead. Nothing is assumed about the
network, the sampler or the metric; only that calibration units are independent (marginal:
exchangeable) draws of those to come.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.calibrate_outcomes import calibrate_outcomes
from muninn.certify.certificate import Certificate
from muninn.certify.examine import require_eval
from muninn.certify.journal import Journal
from muninn.certify.metrics import Metric, Tolerance, metric_name, require_tolerance, resolve
from muninn.certify.outcomes import Outcomes
from muninn.certify.resumed import calibration_of, examined_before, known_by
from muninn.certify.risk import choice_limit, require_risk, require_units, units_needed
from muninn.certify.scan import Measuring, Scan
from muninn.certify.tune import Objective, require_objective, tune_family
from muninn.certify.units import Episodes, UnitName, Units, units_of
from muninn.context import Context
from muninn.errors import CalibrationError, InputError
from muninn.identity.arithmetic import arithmetic
from muninn.identity.digest import digest
from muninn.identity.rows import met_again, row_marks
from muninn.model.planner import Planner, require_planner
from muninn.parallel import Workers, workers_of
from muninn.programs.plan import Family
from muninn.progress import bars


def calibrate(
    planner: Planner,
    calls: Context | Episodes | Outcomes | int,
    *,
    tolerance: Tolerance | None = None,
    risk: float = 0.05,
    confidence: float | None = 0.95,
    metric: str | Metric = "rms_step",
    unit: UnitName | None = None,
    episode_of: Sequence[int] | None = None,
    family: Family | None = None,
    objective: Objective = "evaluations",
    reference: Planner | None = None,
    seed: int = 0,
    batch_size: int = 32,
    resume: str | Path | None = None,
    workers: Workers = None,
    progress: bool = True,
) -> Certificate:
    """Find the cheapest cached program that keeps a promise, and certify it.

    Call it under the autocast and the TF32 switches of deployment: the certificate records them,
    and calls made otherwise run full compute.

    Args:
        planner: what will be deployed.
        calls: contexts like those to come, one row per call, or an iterator of such; or
            :class:`Episodes`, for the closed loop; or :class:`Outcomes`, to promise what episodes
            come to instead of a deviation; or a number of calls without context.
        tolerance: largest acceptable deviation, a number or ``tolerance(context) -> (batch,)``;
            needed but for metrics that have their own, as :func:`muninn.certify.metrics.harm`.
        risk: share of units that may exceed it.
        confidence: probability, over calibration draws, that the risk is kept. None gives the
            marginal certificate: the risk is kept on average over calibration draws.
        metric: ``rms_step``, ``max_step``, ``executed:N``, ``(full, fast) -> (batch,)`` or
            ``(full, fast, context) -> (batch,)``.
        unit: ``call`` (default) or ``episode`` (default for :class:`Episodes`).
        episode_of: episode number of each call, for ``unit="episode"`` with given contexts.
        family: a frozen family; by default one is tuned on a split of its own.
        objective: what tuning minimises: ``evaluations`` in the mean, measured ``time``, or
            evaluations of the ``worst`` call (the same for every call then, as deadlines like it).
        reference: planner whose full compute is the truth (say in higher precision) instead.
        seed: of splits and noise.
        batch_size: calls run together during calibration.
        resume: journal file, with which an interrupted calibration goes on where it stopped.
        workers: who measures chunks of units: so many processes, ``"ray"``, ``"ray://host:10001"``
            (see :func:`muninn.parallel.workers_of`) or a map of :mod:`muninn.parallel`; by default
            this process. Of one kind, their number does not change the certificate.
        progress: show progress bars.

    Raises:
        InputError: an argument is out of range or does not fit, or the network is in train mode.
        CalibrationError: too few units (the message says how many are needed); full compute does
            not repeat itself; calls that are run together influence each other; not even full
            compute keeps the promise against ``reference`` or on the planner's engine; or a
            journal cannot be resumed.
    """
    require_planner(planner, "muninn.calibrate(planner, calls, tolerance=...)")
    risk = number("risk", risk)
    confidence = None if confidence is None else number("confidence", confidence)
    seed, batch_size = whole("seed", seed), whole("batch_size", batch_size, at_least=1)
    require_risk(risk, confidence)
    require_objective(objective)
    for name, given, kind in (("family", family, Family), ("reference", reference, Planner)):
        if given is not None and not isinstance(given, kind):
            raise InputError(f"{name} is a {kind.__name__} or None, got {type(given).__name__}")
    if len(planner.sampler) < 2:
        raise InputError("a sampler with one step has nothing to cache; use the planner as it is")
    require_eval(planner)
    if isinstance(calls, Outcomes):
        _require_default(tolerance=tolerance, unit=unit, episode_of=episode_of, reference=reference)
        return calibrate_outcomes(
            planner, calls, risk=risk, confidence=confidence, metric=metric, family=family,
            seed=seed, resume=resume, workers=workers, progress=progress,
        )  # fmt: skip
    name, deviation = resolve(metric)
    tolerance = getattr(deviation, "tolerance", None) if tolerance is None else tolerance
    if not callable(tolerance):
        tolerance = require_tolerance(number("tolerance", tolerance))
    unit = unit or ("episode" if isinstance(calls, Episodes) else "call")
    if unit not in ("call", "episode"):
        raise InputError(f"unit is 'call' or 'episode', got {unit!r}")
    if reference is not None:
        require_eval(reference, "the reference")
    units = units_of(
        planner, calls, deviation, tolerance, unit, episode_of, seed, batch_size, reference
    )
    in_force = arithmetic(planner.device)
    if family is not None:
        _require_untuned(family, units)
    split = split_units(units.count, risk, confidence, tune=family is None, seed=seed)
    terms: dict[str, Any] = {
        "tolerance": None if callable(tolerance) else tolerance,
        "tolerance_name": metric_name(tolerance) if callable(tolerance) else None,
        "risk": risk,
        "confidence": confidence,
        "metric": name,
        "unit": unit,
        "seed": seed,
        "batch_size": batch_size,
        "reference": None if reference is None else reference.identity(),
    }
    identity: dict[str, Any] = {}
    if resume is not None:
        identity = calibration_of(planner, in_force, family, deviation) | {
            "calls": units.identity(),
            "settings": {**terms, "objective": objective},
            "tolerance": digest(tolerance, "tolerance"),
        }
    rank = require_units(len(split["certify"]), risk, confidence, f"{unit}s for certifying")
    batch = 1 if isinstance(calls, Episodes) else batch_size
    with (
        Journal(resume, identity) as journal,
        workers_of(workers, planner.device) as crew,
        bars(progress) as task,
    ):
        examined = examined_before("planner", planner, units, batch, journal)
        repeats, networks = examined.repeats, [(planner, examined.questions)]
        if reference is not None:
            truth = examined_before("reference", reference, units, batch, journal)
            repeats &= truth.repeats
            networks.append((reference, truth.questions))
        if family is None:
            # Kept in the journal: measured times may choose another family next time.
            if (stored := journal.get("family")) is None:
                tuning = units.for_tuning(split["tune"])
                share = (rank - 1) / len(split["certify"])
                family = tune_family(
                    tuning, tolerance, share, objective=objective, journal=journal, task=task,
                    workers=crew,
                )  # fmt: skip
                if units.loop == "closed":  # else its contexts tell
                    family = replace(family, tuned_on=row_marks(units.rows(split["tune"])))
                journal.put("family", family.to_json())
            else:
                family = Family.from_json(stored)
        # Full compute deviates by nothing only where it is the very same computation.
        check_full = reference is not None or planner.engine != "eager" or not repeats
        measuring = Measuring(units, networks, [deviation, tolerance])
        scan = Scan(measuring, family, journal, crew, task)
        running = confidence is None
        free = choice_limit(len(split["certify"]), risk, confidence)
        member, choosable, outcomes, realised = scan.choose(
            split["certify"], rank - 1, check_full, running, free
        )
        bound = scan.bound(member, outcomes, split["bound"], risk)
    estimates = np.sort([value for outcome in outcomes for value in outcome.estimate])
    estimates = estimates[~np.isnan(estimates)]  # of calls that fell back
    return Certificate(
        family=family,
        member=member,
        choosable=choosable,
        loop=units.loop,
        counts={part: len(members) for part, members in split.items()},
        realised=realised,
        estimates=np.asarray(estimates, dtype=np.float64),
        bound=bound,
        calibrated_on=row_marks(units.rows(range(units.count))) if units.loop == "open" else "",
        **known_by(planner, examined, units, in_force),
        **terms,
    )


def _require_default(**given: object) -> None:
    """Outcomes are promised without a tolerance: their margin is what may be lost."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} does not go with Outcomes, which have a margin; leave it out")


def _require_untuned(family: Family, units: Units) -> None:
    """Calls that chose a family count too few of its violations: they cannot certify it."""
    if met := met_again(family.tuned_on, units.rows(range(units.count))):
        what, other = ("calls", "contexts") if units.loop == "open" else ("episodes", "a seed")
        raise InputError(
            f"this family was tuned on {met} of these {units.count} {what}: they would certify it "
            f"too easily. Give {other} that tuning did not see, or leave the family out: then "
            "calibrate tunes one on a part of them that it keeps apart"
        )


def _split_sizes(count: int, risk: float, tune: bool) -> dict[str, int]:
    bound = max(units_needed(risk, None), round(0.15 * count))
    tuning = max(16, round(0.25 * count)) if tune else 0
    return {"tune": tuning, "certify": count - bound - tuning, "bound": bound}


def split_units(
    count: int, risk: float, confidence: float | None, *, tune: bool, seed: int
) -> dict[str, list[int]]:
    """Disjoint random splits for tuning, certifying and the per-call bound.

    Raises:
        CalibrationError: too few units; says how many are needed in all.
    """
    sizes = _split_sizes(count, risk, tune)
    fewest = units_needed(risk, confidence)
    if sizes["certify"] < fewest:
        needed = max(count, fewest)
        while _split_sizes(needed, risk, tune)["certify"] < fewest:
            needed += 1
        raise CalibrationError(
            f"{count} calls or episodes are too few for risk {risk:g} at "
            f"{'the marginal version' if confidence is None else f'confidence {confidence:g}'}: "
            f"give at least {needed}, or accept a higher risk"
        )
    order = np.random.default_rng(seed).permutation(count)
    parts = np.split(order, np.cumsum(list(sizes.values()))[:-1])
    return {name: sorted(part.tolist()) for name, part in zip(sizes, parts, strict=True)}


def number(name: str, value: Any) -> float:
    """A plain float from any number, numpy's and torch's included; else an InputError."""
    if not isinstance(value, str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise InputError(f"{name} must be a number, got {value!r:.60}")


def whole(name: str, value: Any, at_least: int = 0) -> int:
    """A plain int from any whole number; an InputError if it is none, or too small."""
    try:
        found = operator.index(value)
    except TypeError as error:
        raise InputError(f"{name} must be a whole number, got {value!r:.60}") from error
    if found < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {found}")
    return found
