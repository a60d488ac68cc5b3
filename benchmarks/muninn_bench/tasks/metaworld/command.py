"""The command `muninn-bench metaworld`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def metaworld(
    models: Annotated[Path, typer.Option(help="Folder with the trained policies.")] = Path(
        "models/metaworld"
    ),
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/metaworld"),
    variant: Annotated[
        list[str] | None,
        typer.Option(help="ddpm100, ddim100, ddim16 or flow10, may be repeated; all by default."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest deviation: 1 is 1 mm of commanded motion a step.")
    ] = 1.0,
    risk: Annotated[float, typer.Option(help="Share of calls that may exceed it.")] = 0.05,
    quick: Annotated[bool, typer.Option(help="A miniature for a smoke test, under runs/.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of noise and splits.")] = 0,
) -> None:
    """A real policy (LeRobot, Meta-World pick-place): certify it, then race the alternatives."""
    from muninn_bench.report.tables import print_result
    from muninn_bench.tasks.metaworld.study import QUICK, Sizes, run_study
    from muninn_bench.tasks.metaworld.subjects import VARIANTS

    raw = Path("runs/metaworld-quick" if quick else "runs/metaworld")
    for name in variant or VARIANTS:
        result = run_study(
            models,
            raw if quick else out,
            raw,
            variant=name,
            sizes=QUICK if quick else Sizes(),
            tolerance=tolerance,
            risk=risk,
            seed=seed,
            command=shlex.join(["muninn", *sys.argv[1:]]),
        )
        print_result(Console(), result)
