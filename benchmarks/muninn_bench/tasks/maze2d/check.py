"""Check a teacher: ``python -m muninn_bench.tasks.maze2d.check models/maze2d/teacher.safetensors``.

Plans fresh problems, counts plans that stay out of the walls and, with ``--seeds``, follows plans
in the real environment and counts successes by its own signal. Intervals are Wilson's at 95 %.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from muninn_bench.measure.statistics import wilson
from muninn_bench.networks.teacher import load_teacher
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS, sample_problems
from muninn_bench.tasks.maze2d.planner import sample_plans

PLAN_SEED, LOOP_SEED = 20_000, 30_000
"""Seeds of the wall check's and the closed loop's problems; training data uses seed 0."""


def main(
    teacher: Path,
    plans: Annotated[int, typer.Option(help="Problems of the wall check.")] = 500,
    seeds: Annotated[int, typer.Option(help="Problems of the closed loop.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Evaluations per plan; all steps.")] = None,
    batch: Annotated[int, typer.Option(help="Plans made together.")] = 64,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Count plans that are free of walls, and successes in closed loop."""
    loaded = load_teacher(teacher)
    loaded.network.to(torch.device(device))
    if plans:
        planned = sample_plans(loaded, sample_problems(plans, PLAN_SEED), PLAN_SEED, steps, batch)
        for radius in (0.0, BALL_RADIUS):
            free = int(plan_is_free(planned[..., :2], radius).sum())
            _report(f"free of walls inflated by {radius} m", free, plans)
    if seeds:
        from muninn_bench.tasks.maze2d.rollout import follow_all

        problems = sample_problems(seeds, LOOP_SEED)
        followed = follow_all(problems, sample_plans(loaded, problems, LOOP_SEED, steps, batch))
        _report("closed loop", int(followed.sum()), seeds)


def _report(name: str, count: int, total: int) -> None:
    low, high = wilson(count, total)
    print(
        f"{name}: {count}/{total} = {count / total:.3f} (95% {low:.3f} to {high:.3f})", flush=True
    )


if __name__ == "__main__":
    typer.run(main)
