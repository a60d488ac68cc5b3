"""Compare methods side by side: same calls, same noise, one run, interleaved timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from muninn.certify.cached import CachedPlanner
from muninn.certify.metrics import measure
from muninn.certify.paired import PairedCalls, call_seed
from muninn.context import Context
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.progress import Task as Bars
from muninn.record import Record
from muninn_bench.measure.statistics import bootstrap_mean, excess_p_value, wilson, worse_p_value
from muninn_bench.measure.turns import take_turns

Run = Callable[[Context, Noise], tuple[Tensor, Record]]

WARM_UP = 3
"""Rounds of calls that are not timed."""


@dataclass
class Outcomes:
    """What one method did on the test calls, one entry per call.

    Success, score and clearance (metres) are of the episodes that it drove, None where the world
    has none; seconds and
    ``single_deviation`` are of single timed calls, compared with full compute at batch 1; ``tuned``
    is :meth:`muninn_bench.measure.alternatives.Alternative.tuned`.
    """

    name: str
    evaluations: npt.NDArray[np.int64]
    deviation: FloatArray
    trajectories: npt.NDArray[np.float32]
    success: npt.NDArray[np.bool_] | None = None
    score: FloatArray | None = None
    clearance: FloatArray | None = None
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    single_deviation: FloatArray = field(default_factory=lambda: np.zeros(0))
    bound: FloatArray | None = None
    estimate: FloatArray | None = None
    evaluated: npt.NDArray[np.bool_] | None = None
    tuned: dict[str, Any] | None = None


def plain(planner: Planner) -> Run:
    """The user's own sampler, without Muninn around it: what a speed-up is measured against."""
    return fixed_cost(planner.sample, len(planner.sampler))


def fixed_cost(sample: Callable[..., Tensor], steps: int) -> Run:
    """A method that evaluates the network ``steps`` times in every call."""
    return partial(_sampled, sample, steps)


def _sampled(
    sample: Callable[..., Tensor], steps: int, context: Context, noise: Noise
) -> tuple[Tensor, Record]:
    began = time.perf_counter()
    trajectory = sample(context, noise=noise)
    rows = len(trajectory)
    record = Record(
        np.full(rows, steps),
        np.ones((rows, steps), np.bool_),
        np.zeros(rows),
        (None,) * rows,
        time.perf_counter() - began,
    )
    return trajectory, record


def batches(paired: PairedCalls, count: int) -> list[list[int]]:
    """The first of the paired calls, as many together as are run together."""
    return [list(range(at, min(at + paired.batch, count))) for at in range(0, count, paired.batch)]


def full_outcomes(paired: PairedCalls, bar: Bars) -> Outcomes:
    """Full compute on the paired calls: the plans that all others are compared with."""
    advance = bar("plan full", paired.count)
    trajectories = []
    for calls in batches(paired, paired.count):
        trajectories.append(paired.full(calls).float().cpu().numpy())
        advance(len(calls))
    evaluations = np.full(paired.count, len(paired.planner.sampler))
    return Outcomes("full", evaluations, np.zeros(paired.count), np.concatenate(trajectories))


def plan_all(name: str, run: Run, paired: PairedCalls, bar: Bars) -> Outcomes:
    """What one method does on the paired calls, planned in batches."""
    advance = bar(f"plan {name}", paired.count)
    records, trajectories, deviations = [], [], []
    for calls in batches(paired, paired.count):
        trajectory, record = run(paired.contexts(calls), paired.noise(calls))
        context = paired.contexts(calls)
        deviations.append(measure(paired.metric, paired.full(calls), trajectory, context))
        trajectories.append(trajectory.float().cpu().numpy())
        records.append(record)
        advance(len(calls))
    bounds = [record.bound for record in records if record.bound is not None]
    return Outcomes(
        name,
        np.concatenate([record.evaluations for record in records]),
        np.concatenate(deviations),
        np.concatenate(trajectories),
        bound=np.concatenate(bounds) if bounds else None,
        estimate=np.concatenate([record.estimate for record in records]),
        evaluated=np.concatenate([record.evaluated for record in records]),
    )


Call = Callable[[Context, int], Tensor]
"""``call(context, seed)``: one plan as a user asks for it, the noise drawn from the seed."""


def time_singles(
    calls: Mapping[str, Call],
    outcomes: Sequence[Outcomes],
    paired: PairedCalls,
    timed: int,
    bar: Bars,
) -> None:
    """Batch-1 calls of every method in turns; fills in their seconds and deviations."""

    def single(call: Call) -> Callable[[int], Tensor]:
        def run(number: int) -> Tensor:
            chosen = number % paired.count
            return call(paired.contexts([chosen]), call_seed(paired.seed, chosen))

        return run

    names = [outcome.name for outcome in outcomes]
    runs = [single(calls[name]) for name in names]
    device = paired.planner.device
    advance = bar("time single calls", timed + WARM_UP)
    turns = take_turns(runs, warm_up=WARM_UP, timed=timed, device=device, advance=advance)
    plans = [torch.cat([turn.result for turn in own]) for own in turns]
    full = plans[names.index("full")]
    context = paired.contexts([call % paired.count for call in range(timed)])
    for outcome, own, plan in zip(outcomes, turns, plans, strict=True):
        outcome.seconds = np.array([turn.seconds for turn in own])
        outcome.single_deviation = measure(paired.metric, full, plan, context)
    # Full at batch 1 against Full in a batch: what rounding alone does.
    batched = paired.full([call % paired.count for call in range(timed)])
    rounding = measure(paired.metric, batched, full, context)
    outcomes[names.index("full")].single_deviation = rounding


def summarise(
    fast: CachedPlanner,
    outcomes: list[Outcomes],
    tolerance: float,
    *,
    planner_name: str,
    command: str,
) -> dict[str, Any]:
    """The comparison as one result in the project's schema (docs/architecture.md)."""
    certificate = fast.certificate
    if certificate is None:
        raise InputError("a comparison needs a certified planner, not full compute")
    by_name = {outcome.name: outcome for outcome in outcomes}
    full, muninn = by_name["full"], by_name["muninn"]
    sampler = fast.planner.sampler
    return {
        "planner": planner_name,
        "sampler": sampler.name,
        "steps": len(sampler),
        "device": fast.planner.device.type,
        "dtype": str(fast.planner.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "tolerance": tolerance,
        "metric": certificate.metric,
        "risk": certificate.risk,
        "confidence": certificate.confidence,
        "unit": certificate.unit,
        "loop": certificate.loop,
        "calibration": {part: certificate.counts[part] for part in ("tune", "certify", "bound")},
        "family": certificate.family.name,
        "member": certificate.member,
        "test_calls": len(full.deviation),
        "timed_calls": len(full.seconds),
        "methods": [_method(outcome, tolerance) for outcome in outcomes],
        "speedup": float(np.median(full.seconds) / np.median(muninn.seconds)),
        "violation_p_value": excess_p_value(
            int((muninn.deviation > tolerance).sum()),
            len(muninn.deviation),
            certificate.risk,
            None if certificate.confidence is not None else certificate.counts["certify"],
        ),
        "single_calls": {
            "violations": int((muninn.single_deviation > tolerance).sum()),
            "deviation_max": float(muninn.single_deviation.max()),
            "full_against_itself_max": float(full.single_deviation.max()),
        },
        "success_p_value": None
        if full.success is None or muninn.success is None
        else worse_p_value(full.success, muninn.success),
        "bound_coverage": None
        if muninn.bound is None
        else float((muninn.deviation <= muninn.bound).mean()),
        "command": command,
        "versions": certificate.versions,
    }


def _method(outcome: Outcomes, tolerance: float) -> dict[str, Any]:
    calls = len(outcome.deviation)
    violations = int((outcome.deviation > tolerance).sum())
    won = None if outcome.success is None else int(outcome.success.sum())
    episodes = 0 if outcome.success is None else len(outcome.success)
    milliseconds = 1e3 * outcome.seconds
    return {
        "name": outcome.name,
        "evaluations_mean": float(outcome.evaluations.mean()),
        "evaluations_p95": float(np.quantile(outcome.evaluations, 0.95)),
        "latency_ms_p50": float(np.median(milliseconds)),
        "latency_ms_p99": float(np.quantile(milliseconds, 0.99)),
        "deviation_mean": float(outcome.deviation.mean()),
        "deviation_mean_ci95": list(bootstrap_mean(outcome.deviation)),
        "deviation_p95": float(np.quantile(outcome.deviation, 0.95)),
        "violation_rate": violations / calls,
        "violation_ci95": list(wilson(violations, calls)),
        "task_success": None if won is None else won / episodes,
        "task_success_ci95": None if won is None else list(wilson(won, episodes)),
        "task_score": None if outcome.score is None else float(outcome.score.mean()),
        "task_score_ci95": None if outcome.score is None else list(bootstrap_mean(outcome.score)),
        "tuned": outcome.tuned,
    }
