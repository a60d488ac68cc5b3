"""The command `muninn-bench monitor`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def monitor(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/monitor"),
    quick: Annotated[bool, typer.Option(help="A miniature for a smoke test, under runs/.")] = False,
) -> None:
    """False alarms of the monitor, and its delay under five shifts; resumes if interrupted."""
    from muninn_bench.studies.monitor.study import run_monitor

    folder = Path("runs/monitor-quick") if quick else out
    command = shlex.join(["muninn", *sys.argv[1:]])
    for criterion in run_monitor(folder, quick=quick, command=command):
        Console().print(str(criterion), highlight=False)
