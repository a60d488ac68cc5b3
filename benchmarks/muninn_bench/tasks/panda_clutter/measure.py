"""Measure problems and expert: ``python -m muninn_bench.tasks.panda_clutter.measure``.

Seconds are this process's own, on one core.
"""

from __future__ import annotations

from time import process_time
from typing import Annotated

import numpy as np
import typer

from muninn_bench.tasks.panda_clutter.data import BOXES
from muninn_bench.tasks.panda_clutter.expert import find_path, search
from muninn_bench.tasks.panda_clutter.problem import draw_problem, judge
from muninn_bench.tasks.panda_clutter.world import ROOM


def main(
    problems: Annotated[int, typer.Option(help="Of each difficulty.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 1_000_000,
) -> None:
    """Print, for each difficulty, what problems and paths cost and what they are like."""
    for name, boxes in BOXES.items():
        generator = np.random.default_rng([seed, boxes])
        drawing, searching, finding, found, routes, straight = [], [], [], [], 0, []
        for number in range(problems):
            began = process_time()
            problem = draw_problem(generator, boxes)
            drawn = process_time()
            routes += search(problem, ROOM, number + 1) is not None
            searched = process_time()
            path = find_path(problem, number)
            drawing.append(drawn - began)
            searching.append(searched - drawn)
            finding.append(process_time() - searched)
            if path is not None:
                found.append(judge(problem, path))
                straight.append(np.linalg.norm(problem.goal - problem.start))
        lengths = np.array([one.length for one in found])
        print(
            f"{name}, {boxes} boxes: problem {1e3 * np.mean(drawing):.0f} ms; RRT-Connect alone "
            f"{1e3 * np.median(searching):.0f} ms median, {1e3 * np.quantile(searching, 0.95):.0f} "
            f"ms p95, {routes} of {problems} solved; path {1e3 * np.mean(finding):.0f} ms mean, "
            f"{len(found)} of {problems} found, {sum(one.success for one in found)} judged "
            f"successful, {lengths.mean():.2f} rad mean, {(lengths / straight).mean():.3f} of the "
            f"straight way, smoothness {np.mean([one.smoothness for one in found]):.1e} rad^2, "
            f"clearance {100 * np.median([one.clearance for one in found]):.1f} cm median, "
            f"{100 * min(one.clearance for one in found):.1f} cm least",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
