"""The commands of the studies: `muninn-bench ablate`, `frontier`, `coverage`, `monitor`, ..."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muninn.cli import Crew
from muninn.errors import InputError

console = Console()

Seed = Annotated[int, typer.Option(help="Seed of problems, noise and splits.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="A miniature, under runs/.")]
Rerun = Annotated[
    bool, typer.Option("--rerun", help="Also write .rrd files, which `rerun FILE` shows.")
]
Variant = Annotated[
    str | None, typer.Option("--variant", help="A planner of the task; its first by default.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Results = Annotated[Path, typer.Option("--out", help="Result folder.")]
LATENCY = Path("results/latency")


def command_line() -> str:
    """The command that is running, as results record it."""
    return shlex.join(["muninn-bench", *sys.argv[1:]])


def tell(lines: Iterable[object]) -> None:
    """Print each on a line of its own."""
    for line in lines:
        console.print(str(line), highlight=False)


def ablate(
    out: Results = Path("results/ablation"),
    raw: Annotated[Path, typer.Option(help="Raw cells; kept.")] = Path("runs/ablation"),
    smoke: Smoke = False,
    variant: Annotated[
        str | None, typer.Option(help="Of maze2d, diffuser or transformer; both by default.")
    ] = None,
    device: Device = "cpu",
    workers: Crew = "1",
    measure: Annotated[
        bool, typer.Option(help="Measure what is missing; without it only tables and plots.")
    ] = True,
) -> None:
    """The published method, its baselines and ours, side by side; resumes if interrupted.

    Plan families in OUT/unet and OUT/transformer are used as they are; without them they are tuned.
    """
    from muninn_bench.studies.ablation.settings import FULL, SMOKE, TEACHERS
    from muninn_bench.studies.ablation.study import run_study, write_results
    from muninn_bench.tasks.maze2d.planner import bundled_teacher

    if variant not in (*TEACHERS, None):
        raise InputError(f"--variant is {' or '.join(TEACHERS)}, got {variant!r}")
    tuned = out
    if smoke:
        raw, out = Path("runs/ablation-smoke/raw"), Path("runs/ablation-smoke/results")
    # A wheel brings one teacher: a miniature needs no other.
    chosen = [variant or "diffuser"] if smoke or variant else list(TEACHERS)
    for name, model in (TEACHERS[key] for key in chosen):
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
                workers=workers,
            )
        tell(write_results(raw / name, out / name))


def frontier(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="With --merge: the run folders to merge.")
    ] = None,
    task: Annotated[str, typer.Option(help="A task; `muninn-bench tasks` lists them.")] = "discs",
    variant: Annotated[str | None, typer.Option(help="Of the task; its first by default.")] = None,
    sampler: Annotated[str | None, typer.Option(help="ddpm; the task's own by default.")] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/frontier/TASK/VARIANT by default.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, may be repeated; all by default.")
    ] = None,
    tune: Annotated[int, typer.Option(help="Calls to tune on.")] = 512,
    certify: Annotated[int, typer.Option(help="Calls to certify on.")] = 1024,
    test: Annotated[int, typer.Option(help="Calls to test on.")] = 2048,
    seed: Seed = 0,
    workers: Crew = "1",
    smoke: Smoke = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge run folders into results/frontier instead.")
    ] = False,
) -> None:
    """Fewest evaluations that each method is certified with, at several tolerances; resumes."""
    from muninn_bench.registry import find_task, require_variant
    from muninn_bench.studies import frontier as study

    if merge:
        tell(study.merge(folders or [], out or Path("results/frontier")))
        return
    found = find_task(task)
    name = require_variant(found, variant)
    kind = "frontier-smoke" if smoke else "frontier"
    lines = study.run_frontier(
        found,
        name,
        out or Path("runs", kind, task, name if sampler is None else f"{name}-{sampler}"),
        sampler=sampler,
        device=device,
        sizes=study.Sizes(8, 59, 4) if smoke else study.Sizes(tune, certify, test),
        tolerances=[5.0 * found.tolerance] if smoke else None,
        names=method or (study.OURS, *study.ALTERNATIVES[: 1 if smoke else None]),
        seed=seed,
        workers=workers,
    )
    tell(study.summary(lines))


def coverage(
    out: Results = Path("results/coverage"),
    smoke: Smoke = False,
    seed: Seed = 0,
    workers: Crew = "1",
) -> None:
    """Check the certificate itself: hundreds of calibrations, each deployed on fresh calls."""
    from muninn_bench.studies.coverage.settings import SMOKE, Options
    from muninn_bench.studies.coverage.study import run_coverage

    folder = Path("runs/coverage-smoke") if smoke else out
    options = replace(SMOKE if smoke else Options(), seed=seed)
    tell(run_coverage(folder, options, command_line(), workers=workers))


def outcomes(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="With --merge: the run folders to merge.")
    ] = None,
    task: Annotated[str, typer.Option(help="A task; `muninn-bench tasks` lists them.")] = "discs",
    variant: Annotated[str | None, typer.Option(help="Of the task; its first by default.")] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/outcomes/TASK/VARIANT by default.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, may be repeated; all by default.")
    ] = None,
    certify: Annotated[int, typer.Option(help="Episodes to certify on.")] = 600,
    test: Annotated[int, typer.Option(help="Episodes to judge on.")] = 1000,
    together: Annotated[int, typer.Option(help="Episodes of one lockstep, in one worker.")] = 64,
    seed: Seed = 0,
    workers: Crew = "1",
    smoke: Smoke = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge run folders into results/outcomes instead.")
    ] = False,
) -> None:
    """Fewest evaluations with which episodes come out as with full compute; resumes."""
    from muninn_bench.registry import find_task, require_variant
    from muninn_bench.studies import outcomes as study
    from muninn_bench.studies.frontier import ALTERNATIVES, OURS

    if merge:
        tell(study.merge(folders or [], out or Path("results/outcomes")))
        return
    found = find_task(task)
    name = require_variant(found, variant)
    kind = "outcomes-smoke" if smoke else "outcomes"
    lines = study.run_outcomes(
        found,
        name,
        out or Path("runs", kind, task, name),
        device=device,
        sizes=study.Sizes(8, 70, 30, 16)
        if smoke
        else study.Sizes(certify=certify, test=test, together=together),
        names=method or (OURS, *ALTERNATIVES[: 1 if smoke else None]),
        promises=study.PROMISES[1::2][:1] if smoke else study.PROMISES,
        seed=seed,
        workers=workers,
    )
    tell(study.summary(lines))


def outcome_coverage(
    out: Results = Path("results/outcomes"),
    smoke: Smoke = False,
    seed: Seed = 0,
    workers: Crew = "1",
) -> None:
    """Check promises about outcomes: hundreds of calibrations, with known losses."""
    from muninn_bench.studies.coverage.outcomes import REPETITIONS, run_outcome_coverage

    folder = Path("runs/outcome-coverage-smoke") if smoke else out
    count = 4 if smoke else REPETITIONS
    tell(
        run_outcome_coverage(folder, command_line(), repetitions=count, seed=seed, workers=workers)
    )


def monitor(
    out: Results = Path("results/monitor"),
    smoke: Smoke = False,
    workers: Crew = "1",
) -> None:
    """False alarms of the monitor, and its delay under five shifts; resumes if interrupted."""
    from muninn_bench.studies.monitor.deployment import SMOKE, Options
    from muninn_bench.studies.monitor.study import run_monitor

    folder, options = (Path("runs/monitor-smoke"), SMOKE) if smoke else (out, Options())
    tell(run_monitor(folder, options, command_line(), workers=workers))


def latency(
    out: Results = LATENCY,
    device: Device = "cpu",
    smoke: Smoke = False,
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
    evaluations: Annotated[
        int | None, typer.Option(help="Of a call, in ways that skip some; 20 by default.")
    ] = None,
) -> None:
    """Time every way to make a plan, side by side on this machine; subjects of other runs stay."""
    from muninn_bench.studies.latency.study import run_latency

    found = run_latency(
        Path("runs/latency-smoke") if smoke else out,
        device,
        smoke,
        profile,
        command_line(),
        # A wheel brings one teacher: a miniature needs no other.
        subjects=subject or (["maze2d-fp32"] if smoke and device == "cpu" else None),
        methods=method or None,
        compiled=compile,
        growth=growth,
        batches=batches,
        evaluations=evaluations,
    )
    tell(found)


def soak(
    out: Results = LATENCY,
    device: Device = "cpu",
    calls: Annotated[int, typer.Option(help="Calls in all.")] = 2000,
    smoke: Smoke = False,
) -> None:
    """Thousands of calls of changing shape: does memory grow, do outputs change?"""
    from muninn_bench.studies.latency.soak import run_soak

    folder = Path("runs/soak-smoke") if smoke else out
    tell(
        "{program}, {engine}: {calls} calls, {changed} results changed, memory "
        "{allocated_mb[0]:.1f} -> {allocated_mb[1]:.1f} MB".format(**run)
        for run in run_soak(folder, device, calls, command_line(), smoke=smoke)
    )


def checks(
    out: Results = LATENCY,
    device: Device = "cpu",
    calls: Annotated[int, typer.Option(help="Timed calls of each kind.")] = 200,
    smoke: Smoke = False,
) -> None:
    """What a certificate's checks cost: calls of six evaluations, with and without, in turns."""
    from muninn_bench.studies.latency.checks import run_checks

    folder, calls = (Path("runs/checks-smoke"), 3) if smoke else (out, calls)
    tell(
        "{planner}, {engine}: {without_ms_p50:.2f} ms without, {checked_ms_p50:.2f} ms with "
        "({cost_share:+.2%}); the checks alone take {checks_alone_us_p50:.0f} us".format(**row)
        for row in run_checks(folder, device, calls, command_line())
    )
