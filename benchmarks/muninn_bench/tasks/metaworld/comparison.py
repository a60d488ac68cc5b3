"""Every method on the same held-out problems: closed loop, single calls, time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import measure
from muninn.certify.paired import PairedCalls, call_seed
from muninn.model.planner import Noise
from muninn.model.schedule import FloatArray
from muninn.progress import Task
from muninn.record import Record
from muninn_bench.measure.protocol import Outcomes, Run, matched_evaluations, summarise
from muninn_bench.measure.statistics import excess_p_value, wilson
from muninn_bench.tasks.metaworld.rollout import Episode, random_contexts, roll_out
from muninn_bench.tasks.metaworld.subjects import Call, Subject
from muninn_bench.tasks.metaworld.world import TEST

_BATCH = 50


def compare(
    subject: Subject,
    certificate: Certificate,
    calibration: Tensor,
    tolerance: float,
    *,
    episodes: int,
    timed: int,
    seed: int,
    command: str,
    task: Task,
) -> dict[str, Any]:
    """A result in the project's schema (docs/architecture.md).

    Success is that of ``episodes`` held-out closed-loop episodes that each method drives itself.
    Deviation from Full and evaluations are those of one random call of each of Full's episodes,
    the same for all methods. Alternatives are tuned on calls of the ``calibration`` contexts, from
    which the certificate was made. ``closed_loop`` adds what Full would have done at every call of
    the episodes that Muninn drove.
    """
    runs: dict[str, Run] = {"full": subject.full(), "muninn": subject.cached(certificate)}
    driven = {"full": roll_out_all(subject, "full", runs["full"], episodes, seed, task)}
    contexts = random_contexts(driven["full"], seed)
    paired = PairedCalls(
        subject.planner, contexts, episodes, subject.metric(), call_seed(seed, TEST, 1)
    )
    measured = {name: _outcomes(name, run, paired) for name, run in runs.items()}
    count = matched_evaluations(measured["muninn"])
    for name, alternative in subject.fewer(count, calibration, certificate).items():
        runs[name] = alternative.run(subject.deterministic())
        measured[name] = _outcomes(name, runs[name], paired)
        measured[name].tuned = alternative.tuned()
    for name, run in list(runs.items())[1:]:
        shadow = runs["full"] if name == "muninn" else None
        driven[name] = roll_out_all(subject, name, run, episodes, seed, task, shadow)
    for name, outcome in measured.items():
        outcome.success = np.array([episode.success for episode in driven[name]])
    _time_calls(subject, certificate, runs, measured, paired, timed, task)
    fast = cache(subject.planner, certificate)
    result = summarise(
        fast,
        list(measured.values()),
        tolerance,
        planner_name=f"metaworld pick-place-v3, {subject.name}",
        command=command,
    )
    result["closed_loop"] = _closed_loop(driven["muninn"], tolerance, certificate.risk, seed)
    return result


def roll_out_all(
    subject: Subject,
    name: str,
    run: Run,
    episodes: int,
    seed: int,
    task: Task,
    shadow: Run | None = None,
) -> list[Episode]:
    """The test episodes of one method, with a progress bar."""
    advance = task(f"drive {name}", episodes)
    return roll_out(subject, run, TEST, episodes, seed=seed, shadow=shadow, advance=advance)


def _outcomes(name: str, run: Run, paired: PairedCalls) -> Outcomes:
    """One method on the paired calls."""
    plans: list[Tensor] = []
    records: list[Record] = []
    deviations: list[FloatArray] = []
    for at in range(0, paired.count, _BATCH):
        calls = list(range(at, min(at + _BATCH, paired.count)))
        plan, record = run(paired.contexts(calls), paired.noise(calls))
        deviations.append(measure(paired.metric, paired.full(calls), plan))
        plans.append(plan)
        records.append(record)
    bounds = [record.bound for record in records if record.bound is not None]
    return Outcomes(
        name,
        np.concatenate([record.evaluations for record in records]),
        np.concatenate(deviations),
        torch.cat(plans).float().numpy(),
        bound=np.concatenate(bounds) if bounds else None,
    )


def _time_calls(
    subject: Subject,
    certificate: Certificate,
    runs: dict[str, Run],
    measured: dict[str, Outcomes],
    paired: PairedCalls,
    timed: int,
    task: Task,
) -> None:
    """Batch-1 calls, the methods taking turns, drawing of the noise included.

    Full and Muninn are LeRobot's own call without and with the cache enabled, seeded alike.
    """
    calls: dict[str, Call] = {
        "full": subject.own_call(),
        "muninn": subject.cached_call(certificate),
    }
    for name in list(runs)[2:]:
        calls[name] = _drawing(runs[name], subject.planner.shape)
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    plans: dict[str, list[Tensor]] = {name: [] for name in names}
    advance = task("time single calls", timed)
    for number in range(-2, timed):  # two to warm up
        call = number % paired.count
        context = paired.contexts([call])
        for name in names[number % len(names) :] + names[: number % len(names)]:
            torch.manual_seed(call_seed(paired.seed, call))
            began = time.perf_counter()
            plan = calls[name](context)
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
                plans[name].append(plan)
        if number >= 0:
            advance(1)
    full = torch.cat(plans["full"])
    for name, outcome in measured.items():
        outcome.seconds = np.array(seconds[name])
        outcome.single_deviation = measure(paired.metric, full, torch.cat(plans[name]))
    # Full at batch 1 against Full in a batch: what rounding alone does.
    batched = paired.full([number % paired.count for number in range(timed)])
    measured["full"].single_deviation = measure(paired.metric, batched, full)


def _drawing(run: Run, shape: tuple[int, ...]) -> Call:
    """A deterministic sampler's single call: it draws its initial noise, and no other."""
    return lambda context: run(context, Noise(torch.randn(len(context), *shape)))[0]


def _closed_loop(driven: list[Episode], tolerance: float, risk: float, seed: int) -> dict[str, Any]:
    """Deviations at the calls of Muninn's own episodes; its contexts differ from Full's."""
    drawn = [episode.deviation[episode.random_call(seed, n)] for n, episode in enumerate(driven)]
    violations = int((np.array(drawn) > tolerance).sum())
    worst = np.array([max(episode.deviation) for episode in driven])
    evaluations = np.concatenate([episode.evaluations for episode in driven])
    return {
        "episodes": len(driven),
        "calls": len(evaluations),
        "evaluations_mean": float(evaluations.mean()),
        "random_call_violation_rate": violations / len(driven),
        "random_call_violation_ci95": list(wilson(violations, len(driven))),
        "random_call_violation_p_value": excess_p_value(violations, len(driven), risk),
        "worst_call_violation_rate": float((worst > tolerance).mean()),
    }
