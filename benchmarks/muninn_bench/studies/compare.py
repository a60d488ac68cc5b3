"""Any task: every method on the same held-out episodes and calls, beside the certified program.

A run folder holds ``result.json`` (schema: docs/architecture.md), ``rows.csv`` (one row a method),
``calls.safetensors`` (every array behind them), the certificate, ``report.html``, and
``calls.rrd`` if asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from muninn.certify.alternatives import matched_evaluations
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.files import write_whole
from muninn.model.planner import Planner
from muninn.progress import bars
from muninn_bench.measure.protocol import (
    Call,
    Outcomes,
    Run,
    full_outcomes,
    plain,
    plan_all,
    summarise,
    time_singles,
)
from muninn_bench.measure.rollout import Drive, random_contexts
from muninn_bench.measure.statistics import excess_p_value, wilson
from muninn_bench.report.page import write_report
from muninn_bench.report.rerun_file import RerunFile
from muninn_bench.report.table import write_csv
from muninn_bench.report.tables import rows_of
from muninn_bench.studies.certified import Certified
from muninn_bench.studies.shown_calls import show_calls
from muninn_bench.task import Drawable, OwnCalls, Result, Stream, context_rows


def compare(
    study: Certified, certificate: Certificate, command: str, rerun: bool = False
) -> dict[str, Any]:
    """Every method on the same held-out episodes and calls; writes the run folder.

    ``rerun`` adds ``calls.rrd`` to it.

    Deviation and evaluations are those of one random call of each of Full's episodes, the same
    for all methods; success and score are of the episodes that each method drives itself.
    """
    shown = RerunFile(study.out / "calls.rrd") if rerun else None  # refused before anything runs
    fast = cache(study.planner, certificate)
    runs: dict[str, Run] = {
        "full": plain(study.planner),
        "muninn": lambda context, noise: fast(context, noise=noise),
    }
    driven: dict[str, list[Drive]] = {}
    count = study.sizes.episodes
    if study.task.replans:
        driven["full"] = study.drive("full", runs["full"], Stream.TEST, count)
        contexts = random_contexts(driven["full"], study.seed)
    else:
        contexts = context_rows(study.task, study.variant, Stream.TEST, count, study.seed)
    paired = study.paired(Stream.TEST, contexts)
    with bars(study.progress) as bar:
        outcomes = [full_outcomes(paired, bar), plan_all("muninn", runs["muninn"], paired, bar)]
        advance = bar("tune the alternatives", 1)
        allowed = matched_evaluations(float(outcomes[1].evaluations.mean()))
        found = study.alternatives(allowed, certificate)
        advance(1)
        for name, alternative in found.items():
            runs[name] = alternative.run(study.planner)
            outcomes.append(plan_all(name, runs[name], paired, bar))
            outcomes[-1].tuned = alternative.tuned()
    for outcome in outcomes:
        name = outcome.name
        if study.task.replans and name not in driven:
            shadow = (runs["full"], study.measure) if name == "muninn" else None
            driven[name] = study.drive(name, runs[name], Stream.TEST, count, shadow=shadow)
        results = (
            [drive.result for drive in driven[name]]
            if study.task.replans
            else _follow(study, outcome)
        )
        if all(result.success is not None for result in results):
            outcome.success = np.array([bool(result.success) for result in results])
        if all(result.score is not None for result in results):
            outcome.score = np.array([float(result.score or 0.0) for result in results])
        if all("clearance_m" in result.figures for result in results):
            outcome.clearance = np.array([result.figures["clearance_m"] for result in results])
    with bars(study.progress) as bar:
        calls = _single_calls(study, runs, certificate)
        time_singles(calls, outcomes, paired, study.sizes.timed, bar)
    result = summarise(
        fast,
        outcomes,
        study.tolerance,
        planner_name=f"{study.task.name}, {study.variant}",
        command=command,
    )
    result |= {
        "task": study.task.name,
        "variant": study.variant,
        "tolerance_unit": study.task.unit,
    }
    if study.task.replans:
        result["closed_loop"] = _closed_loop(study, driven["muninn"])
    _write(study, result, outcomes, contexts)
    if shown is not None:
        show_calls(shown, study.task, study.variant, outcomes, contexts)
    return result


def _follow(study: Certified, outcome: Outcomes) -> list[Result]:
    """Carry out the plans of the paired calls, one episode each."""
    results = []
    with bars(study.progress) as bar:
        advance = bar(f"drive {outcome.name}", len(outcome.trajectories))
        for number, plan in enumerate(outcome.trajectories):
            episode = study.task.begin(study.variant, Stream.TEST, number, study.seed)
            episode.follow(torch.tensor(plan))
            results.append(episode.result())
            advance(1)
    return results


def _single_calls(
    study: Certified, runs: dict[str, Run], certificate: Certificate
) -> dict[str, Call]:
    """Single calls as users make them: of the planner, or of the object they have."""
    calls = {name: _seeded(run, study.planner) for name, run in runs.items()}
    if isinstance(study.task, OwnCalls):
        for name, own in study.task.own_calls(study.variant, certificate).items():
            calls[name] = _globally_seeded(own)
    return calls


def _closed_loop(study: Certified, driven: Sequence[Drive]) -> dict[str, Any]:
    """Deviations at the calls of Muninn's own episodes; its contexts differ from Full's."""
    count = len(driven)
    drawn = [drive.deviation[drive.random_call(study.seed, n)] for n, drive in enumerate(driven)]
    violations = int((np.array(drawn) > study.tolerance).sum())
    worst = np.array([max(drive.deviation) for drive in driven])
    evaluations = np.concatenate([drive.evaluations for drive in driven])
    return {
        "episodes": count,
        "calls": len(evaluations),
        "evaluations_mean": float(evaluations.mean()),
        "random_call_violation_rate": violations / count,
        "random_call_violation_ci95": list(wilson(violations, count)),
        "random_call_violation_p_value": excess_p_value(violations, count, study.risk),
        "worst_call_violation_rate": float((worst > study.tolerance).mean()),
    }


def _write(
    study: Certified, result: dict[str, Any], outcomes: Sequence[Outcomes], contexts: Tensor
) -> None:
    write_whole(study.out / "result.json", json.dumps(result, indent=2) + "\n")
    write_csv(study.out / "rows.csv", rows_of(result))
    arrays: dict[str, Any] = {"contexts": contexts.cpu().numpy()}
    for outcome in outcomes:
        for name in ("deviation", "evaluations", "seconds", "success", "score", "clearance",
                     "bound", "estimate", "evaluated"):  # fmt: skip
            values = getattr(outcome, name)
            if values is not None:
                arrays[f"{outcome.name}.{name}"] = values
        if isinstance(study.task, Drawable):
            plans = torch.tensor(outcome.trajectories)
            where = study.task.positions(study.variant, plans)
            arrays[f"{outcome.name}.positions"] = where.astype(np.float32)
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    write_whole(study.out / "calls.safetensors", safetensors.numpy.save(arrays))
    write_report(study.out)


def _seeded(run: Run, planner: Planner) -> Call:
    """A planner's call, its noise drawn before."""
    return lambda context, seed: run(context, planner.draw_noise(seeds=[seed]))[0]


def _globally_seeded(own: Callable[[Tensor], Tensor]) -> Call:
    """A framework's call, which draws from torch's global generator."""

    def call(context: Any, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return own(context)

    return call
