"""The command `muninn-bench suite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muninn.cli import Crew
from muninn.errors import InputError
from muninn_bench.commands import Device, Seed, Smoke, Variant, command_line, console, tell

RESULTS = Path("results/suite")


def suite(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="With --merge: the run folders to merge.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="A task; `muninn-bench tasks` lists them.")
    ] = None,
    variant: Variant = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/suite/TASK/VARIANT by default.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes that every method drives.")] = 150,
    tune: Annotated[int, typer.Option(help="Calls to tune on.")] = 256,
    certify: Annotated[int, typer.Option(help="Calls to certify on.")] = 512,
    test: Annotated[int, typer.Option(help="Calls to test on.")] = 1024,
    closed: Annotated[
        int, typer.Option(help="Episodes of a closed-loop certificate; 0 for none.")
    ] = 256,
    outcome: Annotated[
        int, typer.Option(help="Episodes of the certificate of the mean score; 0 for none.")
    ] = 600,
    timed: Annotated[int, typer.Option(help="Single calls to time of every method.")] = 40,
    most_calls: Annotated[
        int | None, typer.Option(help="End episodes after so many plans, to try it out.")
    ] = None,
    workers: Crew = "1",
    seed: Seed = 0,
    smoke: Smoke = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge run folders into results/suite instead.")
    ] = False,
) -> None:
    """Promises, episodes and latencies of a pair of the paper's first table; resumes.

    Started again on another machine, with --device of that one, it adds its latencies.
    """
    from muninn_bench.registry import find_task, require_variant
    from muninn_bench.studies.suite.page import write_suite
    from muninn_bench.studies.suite.rows import write_rows
    from muninn_bench.studies.suite.study import SMOKE, Sizes, Suite

    if merge:
        tell(write_suite(folders or [], out or RESULTS, command_line()))
        return
    if task is None:
        raise InputError("name a pair, --task hopper --variant diffusion-ql, or --merge folders")
    found = find_task(task)
    name = require_variant(found, variant)
    sizes = Sizes(
        episodes=episodes, tune=tune, certify=certify, test=test, closed=closed, outcome=outcome,
        timed=timed, most_calls=most_calls,
    )  # fmt: skip
    folder = out or Path("runs", "suite-smoke" if smoke else "suite", task, name)
    study = Suite(
        found, name, folder, device=device, sizes=SMOKE if smoke else sizes, seed=seed,
        workers=workers,
    )  # fmt: skip
    study.run()
    rows = write_rows(study)
    for row in rows:
        promised = "" if row["tolerance"] is None else f" {row['tolerance']:g} {row['unit']}"
        console.print(
            f"{row['method']}{promised}: {row['evaluations_mean']:.2f} evaluations, score "
            f"{row['score']:.1f} ({row['score_low']:.1f} to {row['score_high']:.1f})",
            highlight=False,
        )
    console.print(f"wrote {folder / 'rows.csv'}")
