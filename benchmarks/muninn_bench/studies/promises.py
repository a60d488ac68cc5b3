"""What a promise costs: evaluations against what is promised, distances beside outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muninn_bench.report.style import BLUE, INK, ORANGE, outside_legend, plain_ticks, save, subplots
from muninn_bench.studies.frontier import OURS

Line = dict[str, Any]


def draw_promises(distances: Sequence[Line], outcomes: Sequence[Line], path: Path) -> Path:
    """One panel for every planner whose outcomes were certified.

    ``distances`` are lines of ``frontier/cells.csv``, ``outcomes`` those of ``outcomes/cells.csv``.
    """
    planners = list(dict.fromkeys(_planner(line) for line in outcomes))
    columns = min(3, len(planners))
    rows = -(-len(planners) // columns)
    figure, axes = subplots(rows, columns, 1.0 + 3.6 * columns, 3.2 * rows, squeeze=False)
    for axis in axes.flat[len(planners) :]:
        axis.set_axis_off()
    for axis, planner in zip(axes.flat, planners, strict=False):
        own, promised = ([line for line in lines if _planner(line) == planner]
                         for lines in (distances, outcomes))  # fmt: skip
        cells = [*_cells(own, ("tolerance",)), *_cells(promised, ("promise", "limit"))]
        labels = [_label(key) for key, *_ in cells]
        ours, others = ([cell[side] for cell in cells] for side in (1, 2))
        at = range(len(cells))
        axis.plot(at, others, "o", color=ORANGE, markerfacecolor="none", label="best alternative")
        axis.plot(at, ours, "o", color=BLUE, markersize=4, label="Muninn")
        if own and promised:
            axis.axvline(len(cells) - 0.5 - len(_cells(promised, ("promise", "limit"))),
                         color=INK, linewidth=0.6, linestyle=":")  # fmt: skip
        axis.set_yscale("log")
        plain_ticks(axis.yaxis)
        axis.set_xticks(at, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
        axis.set_title(", ".join(planner[:2]), fontsize=10)
        axis.set_ylabel("evaluations of a call")
    outside_legend(figure)
    return save(figure, path)


def _planner(line: Line) -> tuple[str, str, str]:
    return line["task"], line["variant"], line["sampler"]


def _cells(lines: Sequence[Line], keys: tuple[str, ...]) -> list[tuple[Any, float, float]]:
    """Promises in the order of the lines; the evaluations of ours, and of the best alternative."""
    found: dict[Any, dict[str, float]] = {}
    for line in lines:
        spent = found.setdefault(tuple(line[key] for key in keys), {})
        spent[line["method"]] = float(line["evaluations_mean"])
    cells = []
    for key, spent in found.items():
        others = [own for method, own in spent.items() if method != OURS]
        cells.append((key, spent.get(OURS, float("nan")), min(others, default=float("nan"))))
    return cells


def _label(key: tuple[Any, ...]) -> str:
    """A distance as a number, a promise in words."""
    return f"within {key[0]:g}" if len(key) == 1 else f"{key[0]}, {key[1]:.0%}"
