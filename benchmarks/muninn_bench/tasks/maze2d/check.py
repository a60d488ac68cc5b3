"""Check a teacher: ``python -m muninn_bench.tasks.maze2d.check models/maze2d/teacher.safetensors``.

Plans fresh problems, counts plans that stay out of the walls and, with ``--seeds``, follows plans
in the real environment and counts successes by its own signal. Intervals are Wilson's at 95 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from muninn_bench.measure.statistics import wilson
from muninn_bench.networks.teacher import load_teacher
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS, sample_problems
from muninn_bench.tasks.maze2d.planner import sample_plans

PLAN_SEED, LOOP_SEED = 20_000, 30_000
"""Seeds of the wall check's and the closed loop's problems; training data uses seed 0."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m muninn_bench.tasks.maze2d.check", description=__doc__
    )
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--plans", type=int, default=500, help="problems of the wall check")
    parser.add_argument("--seeds", type=int, default=0, help="problems of the closed loop")
    parser.add_argument("--steps", type=int, help="evaluations per plan; all steps by default")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    options = parser.parse_args(arguments)
    teacher = load_teacher(options.teacher)
    teacher.network.to(torch.device(options.device))
    settings = {"steps": options.steps, "batch": options.batch}
    if options.plans:
        plans = sample_plans(
            teacher, sample_problems(options.plans, PLAN_SEED), PLAN_SEED, **settings
        )
        for radius in (0.0, BALL_RADIUS):
            free = int(plan_is_free(plans[..., :2], radius).sum())
            _report(f"free of walls inflated by {radius} m", free, options.plans)
    if options.seeds:
        from muninn_bench.tasks.maze2d.rollout import follow_all

        problems = sample_problems(options.seeds, LOOP_SEED)
        plans = sample_plans(teacher, problems, LOOP_SEED, **settings)
        reached = int(follow_all(problems, plans).sum())
        _report("closed loop", reached, options.seeds)


def _report(name: str, count: int, total: int) -> None:
    low, high = wilson(count, total)
    print(
        f"{name}: {count}/{total} = {count / total:.3f} (95% {low:.3f} to {high:.3f})", flush=True
    )


if __name__ == "__main__":
    main()
