"""Coverage of promises about outcomes: episodes of an analytic planner, with known losses.

A robot replans three times, is disturbed, and succeeds if it ends on the left. A repetition
draws episodes of its own, which full compute and every member drive on the same worlds and noise,
and certifies every promise from them with the scan that :func:`muninn.calibrate` runs. What a
member truly loses is known from the episodes of all repetitions together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal
from muninn.certify.outcome_scan import PROMISED, OutcomeScan
from muninn.certify.outcomes import Outcomes, Promise, Scored, Stream
from muninn.certify.scan import Measuring
from muninn.engines.choose import runtime_for
from muninn.errors import CalibrationError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Map, Workers, workers_of
from muninn.programs.methods import few_steps
from muninn.programs.plan import AnyProgram, Family, Program
from muninn.programs.spacing import sampler_states, spread_steps
from muninn.progress import bars, silent
from muninn_bench.measure.verdicts import Criterion, share_limit, verdicts
from muninn_bench.report.study_page import write_page
from muninn_bench.report.table import markdown, write_csv
from muninn_bench.studies.coverage.mixture import STEPS, mixture_planner
from muninn_bench.studies.coverage.settings import (
    CONFIDENCE,
    EPISODE_CALLS,
    next_contexts,
    start_contexts,
)

SIZES = (100, 400, 1000)
LIMITS = (0.01, 0.05)
"""Risks of harm, and margins of the mean."""

COUNTS = (16, 12, 9, 7, 5, 4, 3)
TUNE, PUSH, REPETITIONS = 64, 0.25, 500
DELTA = 1.0 - CONFIDENCE

Row = dict[str, Any]


@cache
def family(calls: int) -> tuple[Planner, Family]:
    """A planner of so many calls in a row, and DDIM with ever fewer steps on it."""
    planner = mixture_planner("ddim", calls)
    states = sampler_states(planner.sampler)
    tables = [
        few_steps(planner.sampler, [states[step] for step in spread_steps(STEPS, count)])
        for count in COUNTS
    ]
    return planner, Family((Program.full(planner.sampler.kind), *tables), "fewer steps")


def drive(program: AnyProgram, count: int, seed: int) -> FloatArray:
    """Successes (episodes,) of a program; worlds and noise are functions of the seed alone."""
    planner, _ = family(count)
    world = torch.Generator().manual_seed(seed)
    contexts, runtime = start_contexts(count, world), runtime_for(planner, program, strict=True)
    for call in range(EPISODE_CALLS):
        noise = planner.draw_noise(seeds=[seed * EPISODE_CALLS + call])
        plans = runtime(contexts[None], noise=noise)[0][0]
        contexts = next_contexts(contexts, plans) + PUSH * torch.randn(count, 2, generator=world)
    return np.asarray((contexts[:, 0] < 0.0).double())


@dataclass
class DrawnUnits:
    """Episodes that were driven beforehand, as the scan asks for them."""

    planner: Planner
    outcomes: Outcomes
    driven: dict[str, FloatArray]  # by program: those to tune with, then those to certify with
    chunk: ClassVar[int] = 10
    known: dict[int, Tensor] = field(default_factory=dict)

    def measure(self, program: AnyProgram, stream: Stream, episodes: Sequence[int]) -> list[Scored]:
        """The episodes of these numbers."""
        first = 0 if stream == "tune" else TUNE
        own, spent = self.driven[program.digest], program.most_evaluations(STEPS)
        return [Scored(float(own[first + place]), [spent], [0.0]) for place in episodes]


def repetition(seed: int) -> dict[str, Any]:
    """Scores (members, episodes) of one repetition, and what every promise certified."""
    total = TUNE + max(SIZES)
    planner, members = family(total)
    driven = [drive(program, total, seed) for program in members.programs]
    by_program = dict(zip((each.digest for each in members.programs), driven, strict=True))
    rows = []
    promises: tuple[Promise, ...] = ("harm", "mean")
    for promise, limit, size in product(promises, LIMITS, SIZES):
        asked = Outcomes(_nobody, size, promise, limit if promise == "mean" else 0.0, tune=TUNE)
        units: Any = DrawnUnits(planner, asked, by_program)
        scan = OutcomeScan(units, Measuring(units), Journal(), Map(), lambda *_: silent)
        row: Row = {"seed": seed, "promise": promise, "limit": limit, "episodes": size}
        try:
            member, least, seen, _ = scan.certify(members, limit, CONFIDENCE)
            row |= {"member": member, "score_at_least": least, "seen": len(seen)}
        except CalibrationError:
            row |= {"member": None, "score_at_least": None, "seen": 0}
        rows.append(row)
    return {"scores": np.array(driven, dtype=np.int8), "rows": rows}


def _nobody(plan: object, seed: int) -> float:
    raise AssertionError("episodes were driven beforehand")


def run_outcome_coverage(
    out: Path, command: str, *, repetitions: int = REPETITIONS, seed: int = 0, workers: Workers = 1
) -> list[str]:
    """Run the study, write its files; the verdicts."""
    total, rows = 0, list[Row]()
    falls, mean = np.zeros(len(COUNTS) + 1), np.zeros(len(COUNTS) + 1)
    rises = np.zeros(len(COUNTS) + 1)
    with bars(True) as bar, workers_of(workers) as pool:
        advance = bar("repetitions", repetitions)
        for done in pool.map(repetition, range(seed, seed + repetitions)):
            scores = done["scores"]
            total += scores.shape[1]
            falls += (scores[0] > scores).sum(axis=1)
            rises += (scores[0] < scores).sum(axis=1)
            mean += scores.sum(axis=1)
            rows += done["rows"]
            advance(1)
    harm, rise, own = falls / total, rises / total, mean / total
    lost = {"harm": harm, "mean": own[0] - own}
    criteria, cells = list[Criterion](), list[Row]()
    for (promise, true), limit, size in product(lost.items(), LIMITS, SIZES):
        setting = {"promise": promise, "limit": limit, "episodes": size}
        chosen = [row for row in rows if setting.items() <= row.items()]
        cells.append(setting | _cell(limit, chosen, true, own))
        if cells[-1]["refused"]:
            continue
        most = share_limit(DELTA, len(chosen))
        for what, key in (("loss above the promise", "over"), ("own mean", "own_over")):
            found = cells[-1][key]
            detail = f"{found:.3f} of calibrations, at most {most:.3f}"
            name = f"{promise} {limit:g}, {size} episodes"
            criteria.append(Criterion(name, what, found <= most, detail))
    members = [
        {"member": k, "evaluations": spent, "falls": harm[k], "rises": rise[k], "mean": own[k]}
        for k, spent in enumerate((STEPS, *COUNTS))
    ]
    for name, table in (("coverage", cells), ("coverage_members", members)):
        write_csv(out / f"{name}.csv", table)
    write_csv(out / "coverage_raw.csv", rows)
    words = {
        "command": command,
        "versions": library_versions(),
        "repetitions": repetitions,
        "episodes": f"{total:,}",
        "confidence": CONFIDENCE,
        "promised": 1.0 - PROMISED * DELTA,
        "calls": EPISODE_CALLS,
        "verdicts": verdicts(criteria),
        "cells": markdown(list(cells[0]), [[_text(v) for v in cell.values()] for cell in cells]),
        "members": markdown(
            list(members[0]), [[_text(v) for v in member.values()] for member in members]
        ),
    }
    write_page(out, Path(__file__).with_name("outcomes.md"), words)
    return [verdicts(criteria)]


def _cell(limit: float, rows: list[Row], true: FloatArray, own: FloatArray) -> Row:
    """What the repetitions of one promise came to."""
    given = [row for row in rows if row["member"] is not None]
    members = np.array([row["member"] for row in given], dtype=int)
    # The last member before the first that is not fine: what a scan can reach at best.
    best = int(np.flatnonzero(np.append(true > limit, True))[0]) - 1
    spent = np.array((STEPS, *COUNTS))
    least = np.array([row["score_at_least"] for row in given])
    return {
        "refused": len(rows) - len(given),
        "over": float(np.mean(true[members] > limit)) if given else math.nan,
        "own_over": float(np.mean(least > own[members])) if given else math.nan,
        "best_possible": int(spent[best]),
        "evaluations": float(spent[members].mean()) if given else math.nan,
        "reached_best": float(np.mean(members == best)) if given else math.nan,
        "episodes_seen": float(np.mean([row["seen"] for row in given])) if given else math.nan,
    }


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
