"""Certify: choose the most aggressive program whose whole-call deviation keeps the promise.

The proof is in docs/certificate.md. In short: for each unit the family is scanned from
conservative to aggressive, the running maximum of its deviation is monotone by construction, and
an order statistic over units picks the member. Nothing is assumed about the network, the
sampler or the metric; only that calibration units are exchangeable with those to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from muninn.arithmetic import arithmetic
from muninn.certificate import Bound, Certificate, library_versions
from muninn.context import Context, batch_size
from muninn.errors import CalibrationError, InputError
from muninn.journal import Journal, callable_digest, code_digest
from muninn.metrics import Metric, Tolerance, metric_name, require_tolerance, resolve
from muninn.paired import PairedCalls, call_seed
from muninn.plan import Family
from muninn.planner import Planner
from muninn.progress import Task, bars
from muninn.risk import (
    FULL_EXCEEDS,
    order_statistic,
    require_risk,
    require_units,
    scan_members,
    units_needed,
)
from muninn.schedule import FloatArray
from muninn.tuning import Objective, tune_family
from muninn.units import ClosedLoop, Episodes, OpenLoop, Outcome, UnitName, Units


def calibrate(
    planner: Planner,
    calls: Context | Episodes | int,
    *,
    tolerance: Tolerance,
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
    progress: bool = True,
) -> Certificate:
    """Find the cheapest cached program that keeps a promise, and certify it.

    Call it as the planner will be called: under the same autocast and with the same TF32 switches.
    The certificate records them, and calls made otherwise run full compute.

    Args:
        planner: what will be deployed.
        calls: contexts like those to come, batched (one row per call); or :class:`Episodes` for
            a closed-loop certificate; or a number of calls for a planner without context.
        tolerance: largest acceptable deviation, a number or ``tolerance(context) -> (batch,)``.
        risk: share of units that may exceed it.
        confidence: probability, over calibration draws, that the risk is kept. None gives the
            marginal certificate: the risk is kept on average over calibration draws.
        metric: ``rms_step``, ``max_step``, ``executed:N`` or ``(full, cached) -> (batch,)``.
        unit: ``call`` (default) or ``episode`` (default for :class:`Episodes`).
        episode_of: episode number of each call, for ``unit="episode"`` with given contexts.
        family: a frozen family; by default one is tuned on a split of its own.
        objective: what tuning minimises, ``evaluations`` or measured ``time``.
        reference: planner whose full compute is the truth (say in higher precision); by default
            ``planner`` itself.
        seed: of splits and noise.
        batch_size: calls run together during calibration.
        resume: journal file; an interrupted calibration started again with it goes on where it
            stopped and ends with the same certificate.
        progress: show progress bars.

    Raises:
        InputError: an argument is out of range or does not fit.
        CalibrationError: too few units (the message says how many are needed), or not even full
            compute keeps the promise against ``reference``.
    """
    require_risk(risk, confidence)
    if not callable(tolerance):
        require_tolerance(tolerance)
    if len(planner.sampler) < 2:
        raise InputError("a sampler with one step has nothing to cache; use the planner as it is")
    name, deviation = resolve(metric)
    unit = unit or ("episode" if isinstance(calls, Episodes) else "call")
    if unit not in ("call", "episode"):
        raise InputError(f"unit is 'call' or 'episode', got {unit!r}")
    units = _units(
        planner, calls, deviation, tolerance, unit, episode_of, seed, batch_size, reference
    )
    in_force = arithmetic(planner.device)
    split = split_units(units.count, risk, confidence, tune=family is None, seed=seed)
    settings = {
        "tolerance": metric_name(tolerance) if callable(tolerance) else tolerance,
        "risk": risk,
        "confidence": confidence,
        "metric": name,
        "unit": unit,
        "objective": objective,
        "seed": seed,
        "batch_size": batch_size,
    }
    journal = Journal(
        resume,
        {
            "planner": planner.identity(),
            "arithmetic": in_force,
            "reference": None if reference is None else reference.identity(),
            "units": units.identity(),
            "family": None if family is None else family.to_json(),
            "settings": settings,
            "functions": [callable_digest(part) for part in (deviation, tolerance)],
            "versions": {**library_versions(), "code": code_digest()},
        },
    )
    rank = require_units(len(split["certify"]), risk, confidence, f"{unit}s for certifying")
    with bars(progress) as task:
        if family is None:
            # Kept in the journal: measured times may choose another family next time.
            if (stored := journal.get("family")) is None:
                tuning = units.for_tuning(split["tune"])
                share = (rank - 1) / len(split["certify"])
                family = tune_family(
                    tuning, tolerance, share, objective=objective, journal=journal, task=task
                )
                journal.put("family", family.to_json())
            else:
                family = Family.from_json(stored)
        member, outcomes, realised = _choose_member(
            units, family, split["certify"], rank - 1, reference is not None, journal, task
        )
        bound = _fit_bound(units, family, member, outcomes, split["bound"], risk, journal, task)
    estimates = np.sort([value for outcome in outcomes for value in outcome.estimate])
    return Certificate(
        identity=planner.identity(),
        reference=None if reference is None else reference.identity(),
        family=family,
        member=member,
        tolerance=None if callable(tolerance) else float(tolerance),
        tolerance_name=metric_name(tolerance) if callable(tolerance) else None,
        risk=risk,
        confidence=confidence,
        unit=unit,
        loop=units.loop,
        metric=name,
        batch_size=batch_size,
        counts={part: len(members) for part, members in split.items()},
        seed=seed,
        realised=realised,
        estimates=np.asarray(estimates, dtype=np.float64),
        bound=bound,
        versions=library_versions(),
        arithmetic=in_force,
    )


def _units(
    planner: Planner,
    calls: Context | Episodes | int,
    metric: Metric,
    tolerance: Tolerance,
    unit: UnitName,
    episode_of: Sequence[int] | None,
    seed: int,
    chunk: int,
    reference: Planner | None,
) -> Units:
    if chunk < 1:
        raise InputError(f"batch_size must be at least 1, got {chunk}")
    if isinstance(calls, Episodes):
        return ClosedLoop(planner, calls, metric, tolerance, unit, seed, reference or planner)
    count = calls if isinstance(calls, int) else batch_size(calls)
    if not count or count < 1:
        raise InputError(
            "calls holds no call; give batched contexts (one row per call), Episodes, or a number "
            "of calls for a planner without context"
        )
    paired = PairedCalls(
        planner,
        None if isinstance(calls, int) else calls,
        count,
        metric,
        call_seed(seed, 0),
        reference=reference,
    )
    return OpenLoop(paired, tolerance, unit, episode_of, chunk)


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
    parts: dict[str, list[int]] = {}
    at = 0
    for part, size in sizes.items():
        parts[part] = sorted(order[at : at + size].tolist())
        at += size
    return parts


def _measure(
    units: Units, family: Family, member: int, chunk: list[int], part: str, journal: Journal
) -> list[Outcome]:
    """Outcomes of a chunk of units, from the journal if they are there."""
    key = f"{part}/{member}/{chunk[0]}-{chunk[-1]}"
    stored = journal.get(key)
    if stored is None:
        outcomes = units.measure(family.member(member), chunk)
        journal.put(key, [outcome.to_json() for outcome in outcomes])
        return outcomes
    return [Outcome(**entry) for entry in stored]


def _chunks(members: list[int], size: int) -> list[list[int]]:
    return [members[at : at + size] for at in range(0, len(members), size)]


def _choose_member(
    units: Units,
    family: Family,
    split: list[int],
    allowed: int,
    check_full: bool,
    journal: Journal,
    task: Task,
) -> tuple[int, list[Outcome], list[dict[str, Any]]]:
    """Scan the family; the last member whose count of violations stays within ``allowed``."""
    first = 0 if check_full else 1  # without a reference, full compute deviates by nothing
    measured: list[list[Outcome]] = []

    def scan(member: int) -> Iterator[FloatArray]:
        advance = task(f"certify member {member} of {len(family) - 1}", len(split))
        measured.append([])
        for chunk in _chunks(split, units.chunk):
            outcomes = _measure(units, family, member, chunk, "certify", journal)
            measured[-1] += outcomes
            advance(len(chunk))
            yield np.array([outcome.excess for outcome in outcomes])

    accepted, violations = scan_members(map(scan, range(first, len(family))), len(split), allowed)
    if accepted == 0 and check_full:
        raise CalibrationError(FULL_EXCEEDS)
    realised = [
        _summary(first + place, measured[place], count, place < accepted)
        for place, count in enumerate(violations)
    ]
    return first + accepted - 1, measured[accepted - 1] if accepted else [], realised


def _summary(
    member: int, outcomes: list[Outcome], violations: int, accepted: bool
) -> dict[str, Any]:
    """Figures of one member on the certify split (on the part seen before it was rejected)."""
    deviation = np.concatenate([outcome.deviation for outcome in outcomes])
    evaluations = np.concatenate([outcome.evaluations for outcome in outcomes])
    return {
        "member": member,
        "accepted": accepted,
        "units": len(outcomes),
        "violations": violations,
        "evaluations_mean": float(evaluations.mean()),
        "evaluations_max": int(evaluations.max()),
        "deviation_mean": float(deviation.mean()),
        "deviation_p95": float(np.quantile(deviation, 0.95)),
    }


def _fit_bound(
    units: Units,
    family: Family,
    member: int,
    outcomes: list[Outcome],
    split: list[int],
    risk: float,
    journal: Journal,
    task: Task,
) -> Bound:
    """Isotonic fit on the certify split, conformal residual on units that chose nothing."""
    if not outcomes:
        return Bound(np.zeros(1), np.zeros(1), 0.0)
    fit = IsotonicRegression(out_of_bounds="clip").fit(
        np.concatenate([outcome.estimate for outcome in outcomes]),
        np.concatenate([outcome.deviation for outcome in outcomes]),
    )
    bound = Bound(fit.X_thresholds_.astype(float), fit.y_thresholds_.astype(float), 0.0)
    advance = task("per-call bound", len(split))
    residuals = []
    for chunk in _chunks(split, units.chunk):
        for outcome in _measure(units, family, member, chunk, "bound", journal):
            fitted = np.interp(outcome.estimate, bound.estimate, bound.deviation)
            residuals.append(float(np.max(np.array(outcome.deviation) - fitted)))
        advance(len(chunk))
    place = len(residuals) + 1 - order_statistic(len(residuals), risk, None)
    return Bound(bound.estimate, bound.deviation, float(np.sort(residuals)[place - 1]))
