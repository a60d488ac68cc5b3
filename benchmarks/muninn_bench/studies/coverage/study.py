"""Does the promise hold? Hundreds of calibrate-then-deploy repetitions on an analytic planner.

Every repetition draws fresh calibration units, lets the real certification code choose a member
(:func:`muninn.certify.risk.choose_member`, the scan that :func:`muninn.calibrate` runs), and
measures that member on thousands of units that were never seen. A second part, slower and
therefore smaller, goes through the front door: ``muninn.calibrate``, then ``muninn.cache``. Frozen
families are computed once more in bulk, and both ways must agree. Frontiers are what a user gets:
every trial draws a planner and calls, and tunes, fits and certifies a family of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate, library_versions
from muninn.certify.journal import Journal, code_digest
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import choose_member, order_statistic, scan_members
from muninn.certify.units import Episodes, PlanFunction
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn.parallel import Map, Workers, workers_of
from muninn.progress import Task, bars
from muninn_bench.measure.verdicts import Criterion
from muninn_bench.studies.coverage import settings as grid
from muninn_bench.studies.coverage.report import write_report
from muninn_bench.studies.coverage.settings import SIZES, TRIALS, Laboratory, Options, Setting

_BATCH = 128


def run_coverage(
    out: Path,
    options: Options,
    command: str = "muninn-bench coverage",
    progress: bool = True,
    workers: Workers = 1,
) -> list[Criterion]:
    """Run the study and write tables, pictures and verdicts to ``out``; the verdicts.

    An interrupted run started again with the same options goes on where it stopped.
    """
    path = out / "progress.jsonl"
    identity = {
        "options": asdict(options),
        "settings": [asdict(setting) for setting in TRIALS],
        "versions": {**library_versions(), "code": code_digest()},
    }
    journal = Journal(path, identity)
    repetitions, trials = {}, {}
    with bars(progress) as task, workers_of(workers) as crew:
        resumable = partial(_resumable, journal=journal, crew=crew, task=task)
        for place, setting in enumerate(grid.SETTINGS):
            work = partial(_repeat, setting, options.fresh, options.seed, place)
            repetitions[setting.name] = resumable(setting.name, options.repetitions, work)
        for place, trial in enumerate(TRIALS):
            work = partial(run_trial, trial, options.fresh, options.seed, place)
            count = options.tuned if trial.tuned else max(2, options.trials // trial.calls)
            trials[trial] = resumable(f"verbs: {trial.name}", count, work)
    criteria = write_report(out, options, repetitions, trials, command)
    path.unlink()
    return criteria


def _resumable(
    name: str,
    count: int,
    work: Callable[[int], dict[str, Any]],
    journal: Journal,
    crew: Map,
    task: Task,
) -> list[dict[str, Any]]:
    """Results of ``work`` for 0 to count - 1, from the journal where they are there."""
    advance, keys = task(name, count), [f"{name}/{index}" for index in range(count)]
    missing = [index for index, key in enumerate(keys) if journal.get(key) is None]
    advance(count - len(missing))
    for index, result in zip(missing, crew.map(work, missing), strict=True):
        journal.put(keys[index], result)
        advance(1)
    return [journal.get(key) or {} for key in keys]


_laboratory = lru_cache(maxsize=1)(Laboratory)  # in every worker: a runtime cannot be sent to one


def _repeat(setting: Setting, fresh: int, seed: int, place: int, index: int) -> dict[str, Any]:
    seed = call_seed(seed, place, index)
    laboratory = _laboratory(setting, max(SIZES) + fresh)
    excess = laboratory.draw(torch.Generator().manual_seed(seed))
    return repetition(excess, np.random.default_rng(seed))


def repetition(excess: FloatArray, ties: np.random.Generator) -> dict[str, Any]:
    """Calibrate on the first units for every size and risk, deploy on the rest.

    Of excess (units, members), the first ``max(SIZES)`` units calibrate; ``ties`` breaks those
    between units that tolerate the same member.

    Returns:
        cells: one row per size and risk: members and realised risks of the marginal and of the
            confident certificate, and the realised risk of the marginal one's randomised version;
            None where certification refused.
        violations: per member, fresh units beyond the tolerance under it.
    """
    fresh = excess[max(SIZES) :]
    # A unit's place in the order: the member it tolerates, ties broken by a uniform draw.
    tolerated = (np.maximum.accumulate(excess, axis=1) <= 1.0).sum(axis=1) - 1
    order = tolerated + ties.random(len(excess))
    cells = []
    for size, risk in product(SIZES, grid.RISKS):
        cell: dict[str, Any] = {"size": size, "alpha": risk}
        cell |= _deploy("marginal", excess[:size], fresh, risk, None)
        rank = order_statistic(size, risk, None)
        beyond = order[max(SIZES) :] < np.sort(order[:size])[rank - 1]
        cell["randomised_risk"] = float(np.mean(beyond)) if rank > 0 else None
        cells.append(cell | _deploy("confident", excess[:size], fresh, risk, grid.CONFIDENCE))
    return {"cells": cells, "violations": np.count_nonzero(fresh > 1.0, axis=0).tolist()}


def _deploy(
    name: str, calibration: FloatArray, fresh: FloatArray, risk: float, confidence: float | None
) -> dict[str, Any]:
    """The certified member and the risk it realises on fresh units; None where refused."""
    try:
        member = choose_member(calibration, risk, confidence)
    except CalibrationError:
        return {f"{name}_member": None, f"{name}_risk": None}
    return {f"{name}_member": member, f"{name}_risk": float(np.mean(fresh[:, member] > 1.0))}


# -- through the public verbs ----------------------------------------------------------------


def drive_episode(plan: PlanFunction, seed: int) -> None:
    """One closed-loop episode of three calls: the next context depends on the plan returned."""
    context = grid.start_contexts(1, torch.Generator().manual_seed(seed))
    for _ in range(grid.EPISODE_CALLS):
        context = grid.next_contexts(context, plan(context))


def run_trial(trial: Setting, fresh: int, seed: int, place: int, index: int) -> dict[str, Any]:
    """Calibrate, deploy on fresh units, and compare a frozen family with the bulk computation.

    Returns:
        member, method: the certified one, and what it is a program of; stopped: whether a member
        was rejected, so that the certificate had something to prevent; agreed: whether the bulk
        computation counts the same violations for every accepted member and accepts as many (None
        where it cannot run the family); risk: share of fresh units beyond the tolerance;
        bound_covered: share of fresh units whose per-call bound held at every call; evaluations:
        mean per call.
    """
    seed = call_seed(seed, 1000 + place, index)
    generator = torch.Generator().manual_seed(seed)
    planner = trial.planner(seed=call_seed(seed, 1))
    contexts = grid.start_contexts(trial.units, generator)
    certificate = calibrate(
        planner,
        Episodes(drive_episode, trial.units) if trial.unit == "episode" else contexts,
        tolerance=trial.tolerance,
        risk=grid.TRIAL_RISK,
        confidence=grid.CONFIDENCE,
        family=None if trial.tuned else trial.family,
        seed=seed,
        batch_size=_BATCH,
        progress=False,
    )
    in_bulk = not (trial.tuned or trial.adaptive)
    method = getattr(
        certificate.program, "method", "forecast" if in_bulk else certificate.program.kind
    )
    return {
        "member": certificate.member,
        "method": method.split(",")[0] if certificate.member else "full",
        "stopped": not certificate.realised[-1]["accepted"],
        "agreed": _agrees(trial, certificate, contexts, seed) if in_bulk else None,
        **_measure(trial, cache(planner, certificate), fresh, generator),
    }


def _measure(
    trial: Setting, fast: CachedPlanner, fresh: int, generator: torch.Generator
) -> dict[str, float]:
    """Realised risk, coverage of the per-call bound, and mean evaluations on fresh units."""
    context = grid.start_contexts(fresh, generator)
    excess, covered = np.zeros(fresh), np.ones(fresh, dtype=bool)
    evaluations = 0.0
    for _ in range(trial.calls):
        noise = fast.planner.draw_noise(fresh, generator=generator)
        trajectory, record = fast(context, noise=noise)
        deviation = rms_step(fast.planner.sample(context, noise=noise), trajectory).numpy()
        excess = np.maximum(excess, deviation / trial.tolerance)
        assert record.bound is not None
        covered &= deviation <= record.bound
        evaluations += float(record.evaluations.mean()) / trial.calls
        context = grid.next_contexts(context, trajectory)
    shares = {"risk": float(np.mean(excess > 1.0)), "bound_covered": float(np.mean(covered))}
    return shares | {"evaluations": evaluations}


def _agrees(trial: Setting, certificate: Certificate, contexts: torch.Tensor, seed: int) -> bool:
    """Whether the bulk computation of the very same units comes to the same scan."""
    planner, split = trial.planner(), trial.split(seed)["certify"]
    if trial.unit == "episode":
        draws = [torch.Generator().manual_seed(call_seed(seed, unit)) for unit in split]
        starts = torch.cat([grid.start_contexts(1, draw) for draw in draws])
        noises = [
            planner.draw_noise(seeds=[call_seed(seed, unit, call) for unit in split])
            for call in range(trial.calls)
        ]
    else:
        starts = contexts[split]
        paired = PairedCalls(planner, contexts, trial.units, rms_step, call_seed(seed, 0))
        noises = [paired.noise(split)]
    excess = Laboratory(trial, len(split)).excess(starts, noises)
    allowed = order_statistic(len(split), grid.TRIAL_RISK, grid.CONFIDENCE) - 1
    columns = ([column] for column in excess.T)
    found = scan_members(columns, len(split), allowed, running=False)
    public = [row["violations"] for row in certificate.realised if row["accepted"]]
    return found.accepted - 1 == certificate.member and found.own[1 : found.accepted] == public
