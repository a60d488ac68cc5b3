"""A comparison as rerun shows it: one call of every episode, all methods beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from muninn.model.schedule import FloatArray
from muninn_bench.measure.protocol import Outcomes
from muninn_bench.report.rerun_file import GREY, RerunFile
from muninn_bench.report.style import COLOURS, subplots
from muninn_bench.task import Drawable, Task, Timed

_FIGURES = ("evaluations", "deviation", "bound", "clearance")


def show_calls(
    shown: RerunFile, task: Task, variant: str, outcomes: Sequence[Outcomes], contexts: Tensor
) -> None:
    """Log plans, evaluations, deviation, bound and clearance by episode, then close the file.

    A plan is of the episode's compared call; the clearance is of the episode that a method drove.
    """
    scene = _scene(task, variant, contexts)
    if scene is not None:
        shown.lines("world/obstacles", scene[0], GREY, static=True)
    for number in range(len(contexts)):
        shown.episode(number)
        for outcome in outcomes:
            name, values = outcome.name, {key: getattr(outcome, key) for key in _FIGURES}
            known = {key: each[number] for key, each in values.items() if each is not None}
            shown.numbers({f"{key}/{name}": value for key, value in known.items()})
            if scene is not None:
                path = scene[1](torch.tensor(outcome.trajectories[number]))
                shown.lines(f"world/{name}", [path], COLOURS[name])
    shown.close()


def _scene(
    task: Task, variant: str, contexts: Tensor
) -> tuple[list[FloatArray], Callable[[Tensor], FloatArray]] | None:
    """Outlines of the world, and where a plan (horizon, dim) leads; None where nobody knows."""
    if isinstance(task, Timed):
        platform = task.platform(variant)
        return platform.outlines(), platform.path
    if not isinstance(task, Drawable):
        return None
    _, axis = subplots(1, 1, 1.0, 1.0)
    task.draw(axis, variant, contexts[:1])
    outlines = [np.asarray(patch.get_path().vertices) for patch in axis.patches]
    return outlines, lambda plan: task.positions(variant, plan[None])[0]
