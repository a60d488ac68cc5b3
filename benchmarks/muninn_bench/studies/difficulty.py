"""Does compute follow difficulty? Evaluations of an adaptive program against how hard a call is.

A program that decides on the way spends more evaluations on some calls than on others. This study
sets them against figures of the same calls, which the task names: the clearance of the full plan,
the number of boxes. :class:`TightNear` is a tolerance that depends on such a figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from muninn.certify.frontier import Frontier
from muninn.certify.gates import gate_forecast, gate_members
from muninn.certify.metrics import Tolerance, resolve
from muninn.certify.paired import PairedCalls, call_seed
from muninn.context import Context
from muninn.errors import InputError
from muninn.programs.plan import AnyProgram
from muninn_bench.measure.statistics import holm, mean, spearman
from muninn_bench.report import style
from muninn_bench.report.table import Row, Table
from muninn_bench.task import Graded, Stream, Task, context_rows

SHARE = 0.03
"""Of tuning calls that may exceed the tolerance; the default of :func:`muninn.tune`."""

OF_A_CALL = ("variant", "call", "evaluations", "deviation", "tolerance")
"""Columns of a row that are no figure of its difficulty."""


@dataclass(frozen=True)
class TightNear:
    """A tolerance of ``tight`` where a figure of the context is below ``near``, else ``wide``.

    The full plan is not known when a call begins, so the figure is one of the context alone: how
    close start and goal are to a box, say. ``muninn.calibrate(planner, contexts, tolerance=
    TightNear(clearance, near=0.05, tight=0.005, wide=0.02), metric=...)`` promises that at most the
    allowed share of calls deviates by more than its own tolerance.
    """

    figure: Callable[[Context], Tensor]
    near: float
    tight: float
    wide: float

    def __call__(self, context: Context, /) -> Tensor:
        return torch.where(self.figure(context) < self.near, self.tight, self.wide)


def adaptive_program(tuning: PairedCalls, tolerance: Tolerance) -> AnyProgram:
    """The gate with the fewest evaluations that keeps a tolerance, or InputError if none does."""
    frontier = Frontier(tuning, tolerance, SHARE, groups=())
    steps = frontier.steps
    entries = gate_members(frontier, gate_forecast(frontier, steps), float(steps))
    kept = [entry for entry in entries if entry.kept]
    if not kept:
        raise InputError(
            f"no adaptive program with fewer than {steps} evaluations keeps the tolerance on "
            f"{tuning.count} tuning calls; give a larger tolerance"
        )
    return min(kept, key=lambda entry: entry.evaluations).program


def difficulty_rows(
    task: Task,
    variant: str,
    *,
    calls: int = 150,
    tuning: int = 128,
    tolerance: Tolerance | None = None,
    seed: int = 0,
) -> list[Row]:
    """One row a test call: what an adaptive program spent, and the figures of the call.

    The program is tuned on others, for a tolerance: the task's if None. InputError where the task
    does not grade its calls, or no adaptive program keeps the tolerance.
    """
    if not isinstance(task, Graded):
        raise InputError(f"{task.name} does not say how hard its calls are; give it `figures`")
    planner, metric = task.planner(variant), resolve(task.metric(variant))[1]
    limit: Tolerance = task.tolerance if tolerance is None else tolerance

    def paired(stream: Stream, count: int) -> PairedCalls:
        contexts = context_rows(task, variant, stream, count, seed)
        return PairedCalls(planner, contexts, count, metric, call_seed(seed, stream, 1))

    program = adaptive_program(paired(Stream.TUNE, tuning), limit)
    test, every = paired(Stream.TEST, calls), list(range(calls))
    spent = test.measure_in_batches(program, every)
    figures = task.figures(variant, test.full(every), test.contexts(every))
    columns = {
        "evaluations": spent.evaluations, "deviation": spent.deviation,
        "tolerance": test.tolerance(limit, every), **figures,
    }  # fmt: skip
    return [
        {"variant": variant, "call": n, **{name: float(own[n]) for name, own in columns.items()}}
        for n in every
    ]


def difficulty_table(rows: Sequence[Row]) -> Table:
    """Rank correlation of evaluations with every figure, by variant and over all of them.

    p-values are Holm's over the whole table. Beside them the mean evaluations of the third of calls
    with the smallest values, and of the third with the largest. A figure that is the same in all
    calls of a variant is left out there.
    """
    variants = list(dict.fromkeys(str(row["variant"]) for row in rows))
    found, values = list[Row](), list[float]()
    for variant in [*variants, "all"] if len(variants) > 1 else variants:
        own = [row for row in rows if variant in ("all", row["variant"])]
        spent = np.array([row["evaluations"] for row in own], dtype=np.float64)
        for name in (name for name in own[0] if name not in OF_A_CALL):
            figure = np.array([row[name] for row in own], dtype=np.float64)
            correlation, p_value = spearman(figure, spent)
            if math.isnan(correlation):
                continue
            order, third = np.argsort(figure, kind="stable"), math.ceil(len(own) / 3)
            least, most = mean(spent[order[:third]]), mean(spent[order[-third:]])
            about: Row = {"variant": variant, "figure": name, "calls": len(own)}
            said: Row = {"evaluations, smallest third": least, "evaluations, largest third": most}
            found.append({**about, "rank correlation": correlation, "p": p_value, **said})
            values.append(p_value)
    for row, adjusted in zip(found, holm(values), strict=True):
        row["p"] = adjusted
    return Table("difficulty", found)


def draw_difficulty(rows: Sequence[Row], figure: str, path: Path) -> Path:
    """Evaluations against a figure, a colour a variant."""
    drawing, axis = style.subplots(1, 1, 7.0, 3.4)
    variants = list(dict.fromkeys(str(row["variant"]) for row in rows))
    for variant, colour in zip(variants, style.CYCLE * len(variants), strict=False):
        own = [row for row in rows if row["variant"] == variant]
        places = [[row[name] for row in own] for name in (figure, "evaluations")]
        axis.scatter(*places, s=12, alpha=0.6, color=colour, label=variant)
    axis.set_xlabel(figure.replace("_", " "))
    axis.set_ylabel("evaluations of a call")
    style.outside_legend(drawing)
    return style.save(drawing, path)
