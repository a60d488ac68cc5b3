"""Does the promise hold? Hundreds of calibrate-then-deploy repetitions on an analytic planner.

Every repetition draws fresh calibration units, lets the real certification code choose a member
(:func:`muninn.certify.risk.choose_member`, the scan that :func:`muninn.calibrate` runs), and measures that
member on thousands of units that were never seen. A second, smaller part goes through the public
verbs (:mod:`muninn_bench.studies.coverage.trials`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal
from muninn.certify.paired import call_seed
from muninn.certify.risk import choose_member, order_statistic, tolerated
from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray
from muninn.progress import Task, bars
from muninn_bench.studies.coverage.report import write_report
from muninn_bench.studies.coverage.settings import (
    CONFIDENCE,
    RISKS,
    SETTINGS,
    SIZES,
    Laboratory,
    Setting,
)
from muninn_bench.studies.coverage.statistics import Criterion
from muninn_bench.studies.coverage.trials import TRIALS, run_trial


@dataclass(frozen=True)
class Options:
    """How much is run.

    Attributes:
        repetitions: calibrate-then-deploy repetitions of each setting.
        fresh: new units on which each repetition measures its realised risk.
        trials: repetitions through the public verbs; the slow closed-loop ones run a third.
        seed: of everything.
    """

    repetitions: int = 500
    fresh: int = 5000
    trials: int = 90
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.repetitions, self.fresh, self.trials) < 2 or self.seed < 0:
            raise InputError(
                "coverage needs at least 2 repetitions, 2 fresh units, 2 trials and a seed of at "
                f"least 0; got {self}"
            )


QUICK = Options(repetitions=30, fresh=1000, trials=6)


def run_coverage(
    out: str | Path = "results/coverage",
    *,
    quick: bool = False,
    seed: int = 0,
    options: Options | None = None,
    command: str = "muninn-bench coverage",
    progress: bool = True,
) -> list[Criterion]:
    """Run the benchmark and write its tables, picture and verdicts to ``out``.

    An interrupted run started again with the same options goes on where it stopped.

    Args:
        out: folder of the results.
        quick: a miniature that takes under a minute; its verdicts have little power.
        seed: of everything.
        options: how much to run exactly, instead of ``quick`` and ``seed``.
        command: what to name in the README as the command behind the files.
        progress: show progress bars.

    Returns:
        The criteria with their verdicts, as printed in ``README.md``.
    """
    options = options or replace(QUICK if quick else Options(), seed=seed)
    out = Path(out)
    journal_path = out / "progress.jsonl"
    journal = Journal(
        journal_path,
        {
            "options": asdict(options),
            "settings": [asdict(setting) for setting in SETTINGS],
            "trials": [trial.name for trial in TRIALS],
            "versions": library_versions(),
        },
    )
    with bars(progress) as task:
        repetitions = {
            setting.name: _repetitions(place, setting, options, journal, task)
            for place, setting in enumerate(SETTINGS)
        }
        trials = {
            trial.name: _resumable(
                f"verbs: {trial.name}",
                max(2, options.trials // trial.thinning),
                partial(run_trial, trial, seed=options.seed),
                journal,
                task,
            )
            for trial in TRIALS
        }
    criteria = write_report(out, asdict(options), repetitions, trials, command)
    journal_path.unlink()
    return criteria


def _resumable(
    name: str, count: int, work: Callable[[int], dict[str, Any]], journal: Journal, task: Task
) -> list[dict[str, Any]]:
    """Results of ``work`` for 0 to count - 1, from the journal where they are there."""
    advance = task(name, count)
    results = []
    for index in range(count):
        key = f"{name}/{index}"
        result = journal.get(key)
        if result is None:
            result = work(index)
            journal.put(key, result)
        results.append(result)
        advance(1)
    return results


def _repetitions(
    place: int, setting: Setting, options: Options, journal: Journal, task: Task
) -> list[dict[str, Any]]:
    laboratory = Laboratory(setting, max(SIZES) + options.fresh)

    def repeat(index: int) -> dict[str, Any]:
        seed = call_seed(options.seed, place, index)
        excess = laboratory.draw(torch.Generator().manual_seed(seed))
        return repetition(excess, np.random.default_rng(seed))

    return _resumable(setting.name, options.repetitions, repeat, journal, task)


def repetition(excess: FloatArray, ties: np.random.Generator) -> dict[str, Any]:
    """Calibrate on the first units for every size and risk, deploy on the rest.

    Args:
        excess: (units, members); the first ``max(SIZES)`` units calibrate, the others are fresh.
        ties: breaks ties between units that tolerate the same member.

    Returns:
        cells: one row per size and risk: size, risk, member and realised risk of the marginal
            certificate, realised risk of its randomised version, member and realised risk of
            the confident certificate; None where certification refused.
        ranks: of one fresh unit among the calibration units of each size, ties broken at random.
        violations, running: per member, fresh units beyond the tolerance under it, and under it
            or any member before it.
    """
    fresh = excess[max(SIZES) :]
    # A unit's place in the order: the member it tolerates, ties broken by a uniform draw.
    order = tolerated(excess) + ties.random(len(excess))
    cells = []
    for size in SIZES:
        for risk in RISKS:
            marginal = _deploy(excess[:size], fresh, risk, None)
            confident = _deploy(excess[:size], fresh, risk, CONFIDENCE)
            rank = order_statistic(size, risk, None)
            exact = None
            if rank > 0:
                exact = float(np.mean(order[max(SIZES) :] < np.sort(order[:size])[rank - 1]))
            cells.append([size, risk, *marginal, exact, *confident])
    new = order[max(SIZES)]
    return {
        "cells": cells,
        "ranks": [1 + int(np.count_nonzero(order[:size] < new)) for size in SIZES],
        "violations": np.count_nonzero(fresh > 1.0, axis=0).tolist(),
        "running": np.count_nonzero(np.maximum.accumulate(fresh, axis=1) > 1.0, axis=0).tolist(),
    }


def _deploy(
    calibration: FloatArray, fresh: FloatArray, risk: float, confidence: float | None
) -> tuple[int | None, float | None]:
    """The certified member and the risk it realises on fresh units; None where refused."""
    try:
        member = choose_member(calibration, risk, confidence)
    except CalibrationError:
        return None, None
    return member, float(np.mean(fresh[:, member] > 1.0))
