"""The bundled Maze2D teachers, and problems as what their planner is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.measure.protocol import plain
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher, load_teacher
from muninn_bench.planners.diffuser import diffuser_planner
from muninn_bench.tasks.maze2d.maze import MazeProblem

STATE_CHANNELS = 4
maze_planner = diffuser_planner

BUNDLED = ("maze2d", "maze2d-transformer")
"""Teachers that come with the project: a U-Net that predicts x0, a Transformer for the noise."""


def maze_contexts(teacher: Teacher, problems: Sequence[MazeProblem]) -> Tensor:
    """Normalised start and goal states, (problems, 2, 4); goals are at rest."""
    start = np.array([problem.start for problem in problems])
    goal = np.array([np.concatenate([problem.goal, [0.0, 0.0]]) for problem in problems])
    ends = torch.tensor(np.stack([start, goal], axis=1), dtype=torch.float32)
    return teacher.normalise(ends).to(next(teacher.network.parameters(), teacher.low).device)


def sample_plans(
    teacher: Teacher,
    problems: Sequence[MazeProblem],
    seed: int,
    steps: int | None = None,
    batch: int = 64,
) -> FloatArray:
    """Plans of full compute in world units, (problems, horizon, channels), ``batch`` at a time.

    The ``seed`` is of the noise; problem ``i`` gets the same noise in any batch. DDIM takes every
    training step by default.
    """
    planner = maze_planner(teacher)
    run = plain(planner)
    if steps is not None:
        run = Alternative.untuned("fewsteps", planner, steps).run(planner)
    contexts = maze_contexts(teacher, problems)
    plans = []
    for first in range(0, len(problems), batch):
        chosen = contexts[first : first + batch]
        noise = planner.draw_noise(seeds=range(seed + first, seed + first + len(chosen)))
        plans.append(teacher.unnormalise(run(chosen, noise)[0]).double().cpu())
    return torch.cat(plans).numpy()


def bundled_teacher(name: str = "maze2d") -> Teacher:
    """A trained teacher that comes with the project.

    Raises:
        InputError: the name is not one of ``BUNDLED``, or its file is missing.
    """
    if name not in BUNDLED:
        raise InputError(f"no bundled teacher {name!r}; choose one of {', '.join(BUNDLED)}")
    return load_teacher(model_file(f"{name}/teacher.safetensors"))
