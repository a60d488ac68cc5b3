"""Does the promise hold? Hundreds of calibrate-then-deploy repetitions on an analytic planner.

Every repetition draws fresh calibration units, lets the real certification code choose a member
(:func:`muninn.certify.risk.choose_member`, the scan that :func:`muninn.calibrate` runs), and
measures that member on thousands of units that were never seen. A second part, slower and
therefore smaller, goes through the front door: ``muninn.calibrate``, then ``muninn.cache``. It
computes its calibration units once more in bulk and checks that both ways agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.calibrate import calibrate, split_units
from muninn.certify.certificate import Certificate, library_versions
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import choose_member, order_statistic, scan_members
from muninn.certify.units import Episodes, PlanFunction
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn.progress import Task, bars
from muninn_bench.measure.verdicts import Criterion
from muninn_bench.studies.coverage import settings as grid
from muninn_bench.studies.coverage.report import write_report
from muninn_bench.studies.coverage.settings import SIZES, TRIALS, Laboratory, Options, Setting

_FRESH = 2000  # new units on which a trial measures risk and the per-call bound
_BATCH = 128


def run_coverage(
    out: Path, options: Options, command: str = "muninn-bench coverage", progress: bool = True
) -> list[Criterion]:
    """Run the study and write tables, picture and verdicts to ``out``; the verdicts.

    An interrupted run started again with the same options goes on where it stopped.
    """
    path = out / "progress.jsonl"
    identity = {
        "options": asdict(options),
        "settings": [asdict(setting) for setting in grid.SETTINGS],
        "trials": [trial.name for trial in TRIALS],
        "versions": library_versions(),
    }
    journal = Journal(path, identity)
    repetitions, trials = {}, {}
    with bars(progress) as task:
        for place, setting in enumerate(grid.SETTINGS):
            laboratory = Laboratory(setting, max(SIZES) + options.fresh)
            work, name = partial(_repeat, laboratory, options.seed, place), setting.name
            repetitions[name] = _resumable(name, options.repetitions, work, journal, task)
        for trial in TRIALS:
            work, count = partial(run_trial, trial, options.seed), options.trials // trial.calls
            name = f"verbs: {trial.name}"
            trials[trial.name] = _resumable(name, max(2, count), work, journal, task)
    criteria = write_report(out, options, repetitions, trials, command)
    path.unlink()
    return criteria


def _resumable(
    name: str, count: int, work: Callable[[int], dict[str, Any]], journal: Journal, task: Task
) -> list[dict[str, Any]]:
    """Results of ``work`` for 0 to count - 1, from the journal where they are there."""
    advance, results = task(name, count), []
    for index in range(count):
        key = f"{name}/{index}"
        if (result := journal.get(key)) is None:
            result = work(index)
            journal.put(key, result)
        results.append(result)
        advance(1)
    return results


def _repeat(laboratory: Laboratory, seed: int, place: int, index: int) -> dict[str, Any]:
    seed = call_seed(seed, place, index)
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
        ranks: of one fresh unit among the calibration units of each size, ties broken at random.
        violations, running: per member, fresh units beyond the tolerance under it, and under it
            or any member before it.
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
    new = order[max(SIZES)]
    return {
        "cells": cells,
        "ranks": [1 + int(np.count_nonzero(order[:size] < new)) for size in SIZES],
        "violations": np.count_nonzero(fresh > 1.0, axis=0).tolist(),
        "running": np.count_nonzero(np.maximum.accumulate(fresh, axis=1) > 1.0, axis=0).tolist(),
    }


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


def run_trial(trial: Setting, seed: int, index: int) -> dict[str, Any]:
    """Calibrate, deploy on fresh units, and compare with the bulk computation.

    Returns:
        member: the certified one; agreed: whether the bulk computation counts the same
        violations for every accepted member and accepts as many (None for adaptive families);
        risk: share of fresh units beyond the tolerance; bound_covered: share of fresh units whose
        per-call bound held at every call; evaluations: mean per call.
    """
    seed = call_seed(seed, 1000 + TRIALS.index(trial), index)
    generator = torch.Generator().manual_seed(seed)
    planner = trial.planner()
    contexts = grid.start_contexts(grid.TRIAL_UNITS, generator)
    certificate = calibrate(
        planner,
        Episodes(drive_episode, grid.TRIAL_UNITS) if trial.unit == "episode" else contexts,
        tolerance=trial.tolerance,
        risk=grid.TRIAL_RISK,
        confidence=grid.CONFIDENCE,
        family=trial.family,
        seed=seed,
        batch_size=_BATCH,
        progress=False,
    )
    agreed = None if trial.adaptive else _agrees(trial, certificate, contexts, seed)
    found = _measure(trial, cache(planner, certificate), generator)
    return {"member": certificate.member, "agreed": agreed, **found}


def _measure(trial: Setting, fast: CachedPlanner, generator: torch.Generator) -> dict[str, float]:
    """Realised risk, coverage of the per-call bound, and mean evaluations on fresh units."""
    context = grid.start_contexts(_FRESH, generator)
    excess, covered = np.zeros(_FRESH), np.ones(_FRESH, dtype=bool)
    evaluations = 0.0
    for _ in range(trial.calls):
        noise = fast.planner.draw_noise(_FRESH, generator=generator)
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
    promise = (grid.TRIAL_RISK, grid.CONFIDENCE)
    split = split_units(grid.TRIAL_UNITS, *promise, tune=False, seed=seed)["certify"]
    planner = trial.planner()
    if trial.unit == "episode":
        draws = [torch.Generator().manual_seed(call_seed(seed, unit)) for unit in split]
        starts = torch.cat([grid.start_contexts(1, draw) for draw in draws])
        noises = [
            planner.draw_noise(seeds=[call_seed(seed, unit, call) for unit in split])
            for call in range(trial.calls)
        ]
    else:
        starts = contexts[split]
        paired = PairedCalls(planner, contexts, grid.TRIAL_UNITS, rms_step, call_seed(seed, 0))
        noises = [paired.noise(split)]
    excess = Laboratory(trial, len(split)).excess(starts, noises)
    allowed = order_statistic(len(split), *promise) - 1
    columns = ([column] for column in excess.T)
    found = scan_members(columns, len(split), allowed, running=False)
    public = [row["violations"] for row in certificate.realised if row["accepted"]]
    return found.accepted - 1 == certificate.member and found.own[1 : found.accepted] == public
