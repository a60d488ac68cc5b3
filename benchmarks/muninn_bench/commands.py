"""The commands `muninn-bench ablate`, `coverage`, `monitor`, `latency`, `checks` and `soak`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muninn.errors import InputError

console = Console()

Seed = Annotated[int, typer.Option(help="Seed of problems, noise and splits.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="A miniature, under runs/.")]


def command_line() -> str:
    """The command that is running, as results record it."""
    return shlex.join(["muninn-bench", *sys.argv[1:]])


def ablate(
    out: Annotated[Path, typer.Option(help="Folder for tables and plots.")] = Path(
        "results/ablation"
    ),
    raw: Annotated[Path, typer.Option(help="Folder for raw cells; what it holds is kept.")] = Path(
        "runs/ablation"
    ),
    smoke: Smoke = False,
    variant: Annotated[
        str | None, typer.Option(help="Of maze2d, diffuser or transformer; both by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    measure: Annotated[
        bool, typer.Option(help="Measure what is missing; without it only tables and plots.")
    ] = True,
) -> None:
    """The published method, its baselines and ours, side by side; resumes if interrupted.

    Plan families in OUT/unet and OUT/transformer are used as they are; without them they are tuned.
    """
    from muninn_bench.studies.ablation.settings import FULL, SMOKE, TEACHERS
    from muninn_bench.studies.ablation.study import run_study
    from muninn_bench.studies.ablation.write import write_results
    from muninn_bench.tasks.maze2d.planner import bundled_teacher

    if variant not in (*TEACHERS, None):
        raise InputError(f"--variant is {' or '.join(TEACHERS)}, got {variant!r}")
    tuned = out
    if smoke:
        raw, out = Path("runs/ablation-smoke/raw"), Path("runs/ablation-smoke/results")
    for name, model in TEACHERS.values() if variant is None else (TEACHERS[variant],):
        if measure:
            console.print(f"[bold]{name}[/]: measuring into {raw / name}")
            run_study(
                name,
                bundled_teacher(model),
                raw / name,
                SMOKE if smoke else FULL,
                device=device,
                command=command_line(),
                tuned=tuned / name,
            )
        for line in write_results(raw / name, out / name):
            console.print(line, highlight=False)


def coverage(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/coverage"),
    smoke: Smoke = False,
    seed: Seed = 0,
) -> None:
    """Check the certificate itself: hundreds of calibrations, each deployed on fresh calls."""
    from muninn_bench.studies.coverage.settings import SMOKE, Options
    from muninn_bench.studies.coverage.study import run_coverage

    folder = Path("runs/coverage-smoke") if smoke else out
    options = replace(SMOKE if smoke else Options(), seed=seed)
    for criterion in run_coverage(folder, options, command_line()):
        console.print(str(criterion), highlight=False)


def monitor(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/monitor"),
    smoke: Smoke = False,
) -> None:
    """False alarms of the monitor, and its delay under five shifts; resumes if interrupted."""
    from muninn_bench.studies.monitor.deployment import SMOKE, Options
    from muninn_bench.studies.monitor.study import run_monitor

    folder, options = (Path("runs/monitor-smoke"), SMOKE) if smoke else (out, Options())
    for criterion in run_monitor(folder, options, command_line()):
        console.print(str(criterion), highlight=False)


def latency(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/latency"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option(help="A miniature for a smoke test, under runs/.")] = False,
    profile: Annotated[bool, typer.Option(help="Also measure where the time goes.")] = False,
    subject: Annotated[
        list[str] | None, typer.Option(help="A planner to time, may be repeated; all by default.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to time, may be repeated; all by default.")
    ] = None,
    compile: Annotated[bool, typer.Option(help="Time compiled networks too.")] = True,
    growth: Annotated[bool, typer.Option(help="Measure how cost grows with sizes.")] = True,
    batches: Annotated[bool, typer.Option(help="Measure throughput of batches.")] = True,
) -> None:
    """Time every way to make a plan, side by side on this machine; subjects of other runs stay."""
    from muninn_bench.studies.latency.study import run_latency

    found = run_latency(
        Path("runs/latency-quick") if quick else out,
        device,
        quick,
        profile,
        command_line(),
        subjects=subject or None,
        methods=method or None,
        compiled=compile,
        growth=growth,
        batches=batches,
    )
    for target in found:
        console.print(str(target), highlight=False)


def soak(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/latency"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    calls: Annotated[int, typer.Option(help="Calls in all.")] = 2000,
) -> None:
    """Thousands of calls of changing shape: does memory grow, do outputs change?"""
    from muninn_bench.studies.latency.soak import run_soak

    for run in run_soak(out, device, calls, command_line()):
        before, after = run["allocated_mb"]
        console.print(
            f"{run['program']}, {run['engine']}: {run['calls']} calls, {run['changed']} results "
            f"changed, memory {before:.1f} -> {after:.1f} MB",
            highlight=False,
        )


def checks(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/latency"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    calls: Annotated[int, typer.Option(help="Timed calls of each kind.")] = 200,
) -> None:
    """What a certificate's checks cost: calls of six evaluations, with and without, in turns."""
    from muninn_bench.studies.latency.checks import run_checks

    for row in run_checks(out, device, calls, command_line()):
        console.print(
            f"{row['planner']}, {row['engine']}: {row['without_ms_p50']:.2f} ms without, "
            f"{row['checked_ms_p50']:.2f} ms with ({row['cost_share']:+.2%}); the checks alone "
            f"take {row['checks_alone_us_p50']:.0f} us",
            highlight=False,
        )
