"""How few evaluations each method needs for the same outcome: harm and means, certified on paired
episodes and judged on fresh ones.

A run folder holds ``episodes.jsonl`` (every finished episode and score of tuning) and
``cells.csv``, one line a method and promise; both are kept when the study is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal, code_digest
from muninn.certify.metrics import resolve
from muninn.certify.outcome_scan import OutcomeScan, scores
from muninn.certify.outcomes import STREAMS, Outcomes, OutcomeUnits, Promise, Scored
from muninn.certify.paired import call_seed
from muninn.certify.risk import wilson
from muninn.certify.scan import Measuring
from muninn.context import Context
from muninn.errors import CalibrationError, InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers, workers_of
from muninn.programs.methods import methods
from muninn.progress import bars
from muninn_bench.report.table import read_csv, write_csv
from muninn_bench.studies.frontier import ALTERNATIVES, OURS, planner_of
from muninn_bench.studies.promises import draw_promises
from muninn_bench.task import Stream, Task

PROMISES: tuple[tuple[Promise, float], ...] = (
    ("harm", 0.02), ("harm", 0.05), ("mean", 0.02), ("mean", 0.05),
)  # fmt: skip
"""And what each is about: a risk, or a margin."""

CONFIDENCE = 0.95
_WORLDS = {"tune": Stream.TUNE, "certify": Stream.CERTIFY, "test": Stream.TEST}
_turn = Lock()  # simulators share what is slow to build


@dataclass(frozen=True)
class Sizes:
    """Episodes of each purpose, and how many run in lockstep."""

    tune: int = 64
    certify: int = 600
    test: int = 1000
    together: int = 64


class Driven:
    """Episodes of a task as :class:`muninn.Outcomes` runs them; a seed names a world of its own."""

    def __init__(self, task: Task, variant: str, planner: Planner, sizes: Sizes, seed: int) -> None:
        self._task, self._variant, self._device, self._seed = task, variant, planner.device, seed
        self._worlds = {
            call_seed(seed, STREAMS[part], number): (stream, number)  # type: ignore[index]
            for part, stream in _WORLDS.items()
            for number in range(getattr(sizes, part))
        }
        self._spare = (Stream.TUNE, sizes.tune)

    def __call__(self, plan: Callable[[Context], Tensor], seed: int) -> float:
        """Drive one episode; the task's own score where that is 0 or 1, else success.

        Raises:
            InputError: the task knows points alone.
        """
        stream, number = self._worlds.get(seed, self._spare)
        with _turn:
            episode = self._task.begin(self._variant, stream, number, self._seed)
            context = episode.context()
        while not episode.done:
            made = plan(context.to(self._device))[0].cpu()
            with _turn:
                episode.follow(made)
                context = context if episode.done else episode.context()
        with _turn:  # some judge what was driven only now, in a simulator that they share
            result = episode.result()
        if result.score in (0.0, 1.0):
            return result.score
        if result.success is None:
            raise InputError(
                f"{self._task.name} says how many points an episode scores, not whether it "
                "succeeds, which is what this study promises; "
                f"`muninn-bench suite --task {self._task.name}` certifies the mean of points"
            )
        return float(result.success)

    def muninn_identity(self) -> str:
        """What a journal knows it by."""
        return f"{self._task.name}/{self._variant}/{self._seed}"


def run_outcomes(
    task: Task,
    variant: str,
    folder: Path,
    *,
    device: str = "cpu",
    sizes: Sizes,
    names: Sequence[str] = (OURS, *ALTERNATIVES),
    promises: Sequence[tuple[Promise, float]] = PROMISES,
    seed: int = 0,
    workers: Workers = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """The lines of ``cells.csv``: for every method and promise what is certified, and judged.

    Workers drive the episodes, each so many in lockstep; the lines are the same for any number.
    """
    planner = planner_of(task, variant, None, device)
    driven = Driven(task, variant, planner, sizes, seed)
    metric = resolve(task.metric(variant))[1]
    identity = {
        "planner": planner.identity(),
        "episodes": driven.muninn_identity(),
        "sizes": [sizes.tune, sizes.certify, sizes.test, sizes.together],
        "versions": {**library_versions(), "code": code_digest()},
    }
    journal, path = Journal(folder / "episodes.jsonl", identity), folder / "cells.csv"
    lines = read_csv(path)
    done = {(line["promise"], line["limit"], line["method"]) for line in lines}
    groups = {method.group for method in methods(planner.sampler).values()}
    wanted = [name for name in names if name == OURS or name in groups]
    with workers_of(workers, planner.device) as crew, bars(progress) as bar:

        def scan_for(promise: Promise, limit: float) -> OutcomeScan:
            margin = limit if promise == "mean" else 0.0
            asked = Outcomes(
                driven, sizes.certify, promise, margin, together=sizes.together, tune=sizes.tune
            )
            units = OutcomeUnits(planner, asked, seed)
            return OutcomeScan(units, Measuring(units), journal, crew, bar)

        contexts: list[Context] = []
        for promise, limit in promises:
            scan = scan_for(promise, limit)
            for name in (name for name in wanted if (promise, limit, name) not in done):
                contexts = contexts or _contexts(scan, sizes)
                about = {
                    "task": task.name,
                    "variant": variant,
                    "promise": promise,
                    "margin": limit if promise == "mean" else 0.0,
                    "risk": limit if promise == "harm" else None,
                    "method": name,
                }
                line = _line(scan, contexts, metric, None if name == OURS else name, limit, sizes)
                own = {"limit": limit, "sampler": planner.sampler.name}
                lines.append(about | line | own)
                write_csv(path, lines)
    return lines


def _contexts(scan: OutcomeScan, sizes: Sizes) -> list[Context]:
    """What full compute is asked in some tuning episodes."""
    units = scan.units
    units.met = []
    units.measure(scan.full, "tune", range(min(sizes.together, sizes.tune)))
    met, units.met = units.met, None
    return met


def _line(
    scan: OutcomeScan,
    contexts: list[Context],
    metric: Any,
    group: str | None,
    limit: float,
    sizes: Sizes,
) -> dict[str, Any]:
    """A family certified, its program judged; ``limit`` is a risk or a margin."""
    promise = scan.units.outcomes.promise
    risk = limit if promise == "harm" else 0.05
    try:
        family = scan.family(contexts, metric, risk, None if group is None else {group})
        member, *_, rows = scan.certify(family, risk, CONFIDENCE)
    except CalibrationError:  # too few episodes, or no program
        member, family, rows = 0, None, []
    program = scan.full if family is None else family.member(member)
    full = scores(scan.all("full", scan.full, "test", sizes.test))
    own = scan.all("certified", program, "test", sizes.test)
    realised, low, high = judged(promise, full - scores(own))
    return {
        "certified": member > 0,
        "evaluations_mean": spent(own),
        "calibration_episodes": max((row["units"] for row in rows), default=0),
        "test_episodes": len(own),
        "realised": realised,
        "realised_low": low,
        "realised_high": high,
        "score_full": float(full.mean()),
        "score": float(scores(own).mean()),
        "program": str(program),
    }


def spent(episodes: list[Scored]) -> float:
    """Evaluations of a call, in the mean over all calls."""
    return float(np.concatenate([each.evaluations for each in episodes]).mean())


def judged(promise: Promise, fall: FloatArray) -> tuple[float, float, float]:
    """What was realised, with its 95% interval: a share of falls, or a mean fall."""
    if promise == "harm":
        count = int(np.sum(fall > 0.0))
        return count / len(fall), *wilson(count, len(fall))
    mean, error = float(fall.mean()), float(stats.sem(fall))
    half = error * float(stats.t.ppf(0.975, len(fall) - 1))
    return mean, mean - half, mean + half


def merge(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the lines of several run folders as one ``cells.csv``, and a picture beside those of
    the frontier next to ``out``; a summary."""
    lines = [line for folder in folders for line in read_csv(folder / "cells.csv")]
    write_csv(out / "cells.csv", lines)
    draw_promises(read_csv(out.parent / "frontier" / "cells.csv"), lines, out / "promises.png")
    return list(summary(lines))


def summary(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line of text for every line of the table."""
    for line in lines:
        yield (
            f"{line['task']} {line['variant']}, {line['promise']} {line['limit']:g}: "
            f"{line['method']} {line['evaluations_mean']:.2f} evaluations"
            f"{'' if line['certified'] else ' (not certified)'}, realised {line['realised']:.4f} "
            f"({line['realised_low']:.4f} to {line['realised_high']:.4f})"
        )
