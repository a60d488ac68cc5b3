"""The verb behind :func:`muninn.calibrate` where an outcome is promised, not a distance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import Certificate
from muninn.certify.journal import Journal
from muninn.certify.metrics import Metric, resolve
from muninn.certify.outcome_scan import PROMISED, OutcomeScan, allowed_falls, episodes_needed
from muninn.certify.outcomes import Outcomes, OutcomeUnits
from muninn.certify.resumed import calibration_of, examined_before, known_by
from muninn.certify.scan import Measuring
from muninn.context import Context
from muninn.engines.runtime import log_once
from muninn.errors import InputError
from muninn.identity.arithmetic import arithmetic
from muninn.model.planner import Planner
from muninn.parallel import Map, Workers, workers_of
from muninn.programs.plan import Family
from muninn.progress import bars


def calibrate_outcomes(
    planner: Planner,
    outcomes: Outcomes,
    *,
    risk: float,
    confidence: float | None,
    metric: str | Metric,
    family: Family | None,
    seed: int,
    resume: str | Path | None,
    workers: Workers,
    progress: bool,
) -> Certificate:
    """Find the cheapest program that keeps the outcome of episodes, and certify it.

    Arguments and errors are those of :func:`muninn.calibrate`; ``metric`` only tells programs with
    as many evaluations apart.
    """
    if confidence is None:
        raise InputError("an outcome is promised with a confidence; 0.95 is usual")
    name, deviation = resolve(metric)
    allowed_falls(outcomes, risk, confidence)  # refuses what cannot be proven
    units = OutcomeUnits(planner, outcomes, seed)
    in_force = arithmetic(planner.device)
    terms: dict[str, Any] = {"risk": risk, "confidence": confidence, "metric": name, "seed": seed}
    promised = {key: getattr(outcomes, key) for key in ("promise", "margin", "low", "high")}
    identity: dict[str, Any] = {}
    if resume is not None:
        identity = calibration_of(planner, in_force, family, deviation) | {
            "episodes": units.identity(),
            "settings": {**terms, **promised, "tune": outcomes.tune},
        }
    if progress:
        from rich import print as say

        say(episodes_needed(outcomes, risk, confidence).capitalize() + ".")
    with (
        Journal(resume, identity) as journal,
        workers_of(workers, planner.device) as crew,
        bars(progress) as task,
    ):
        examined = examined_before("planner", planner, units, outcomes.together, journal)
        units.batches = examined.together
        measuring = Measuring(units, [(planner, examined.questions)], [outcomes.run])
        scan = OutcomeScan(units, measuring, journal, crew, task)
        if family is None and (stored := journal.get("family")) is not None:
            family = Family.from_json(stored)
        if family is None:
            family = scan.family(_contexts(scan), deviation, risk)
            journal.put("family", family.to_json())
        ruler = scan.ruler()
        if not ruler["repeats"]:
            log_once(
                "run() ends otherwise when it is run again with the same seed and the same plans: "
                "the promise holds, but takes more episodes. Seed everything that it draws from"
            )
        member, least, episodes, realised = scan.certify(family, risk, confidence)
    estimates = np.sort([value for each in episodes for value in each.estimate])
    return Certificate(
        reference=None,
        family=family,
        member=member,
        choosable=member,
        tolerance=None,
        tolerance_name=None,
        unit="episode",
        loop=units.loop,
        batch_size=outcomes.together,
        counts={"tune": outcomes.tune, "certify": len(episodes), "bound": 0},
        realised=realised,
        estimates=np.asarray(estimates[~np.isnan(estimates)], dtype=np.float64),
        bound=None,
        outcome={
            **promised,
            "run": getattr(outcomes.run, "__qualname__", type(outcomes.run).__qualname__),
            "score_mean": float(np.mean([each.score for each in episodes])),
            "score_at_least": least,
            "promised_confidence": 1.0 - PROMISED * (1.0 - confidence),
            "ruler": ruler,
        },
        **known_by(planner, examined, units, in_force),
        **terms,
    )


def _contexts(scan: OutcomeScan) -> list[Context]:
    """Contexts that full compute meets in tuning episodes; their scores are in the journal then.

    All are driven again where a journal has scores of some: what was tuned before belongs to the
    contexts of all of them.
    """
    for journal in (scan.journal, Journal()):
        units, here = scan.units, replace(scan, journal=journal, workers=Map())
        units.met = []
        episodes = here.all("full", scan.full, "tune", units.outcomes.tune)
        met, units.met = units.met, None
        if len(met) == sum(len(each.evaluations) for each in episodes):
            break
    return met
