"""The command line of the benchmarks: `muninn-bench --help` lists what it does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muninn.errors import InputError, MuninnError
from muninn_bench.commands import (
    Seed,
    checks,
    command_line,
    console,
    coverage,
    few_steps,
    latency,
    soak,
)
from muninn_bench.studies.closed_loop.command import fly
from muninn_bench.studies.monitor.command import monitor
from muninn_bench.tasks.metaworld.command import metaworld

if TYPE_CHECKING:
    from muninn_bench.networks.teacher import Teacher

app = typer.Typer(
    help="Muninn's worlds, teachers and studies; raw numbers go to results/.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _study in (fly, metaworld, monitor, coverage, latency, checks, soak, few_steps):
    app.command()(_study)

ToleranceOption = Annotated[float, typer.Option(help="Largest deviation, in units of the metric.")]
RiskOption = Annotated[float, typer.Option(help="Share of calls that may exceed the tolerance.")]
ConfidenceOption = Annotated[
    float, typer.Option(help="Confidence over calibration draws; 0 for the marginal certificate.")
]
MetricOption = Annotated[str, typer.Option(help="rms_step, max_step or executed:N.")]
TeacherOption = Annotated[
    Path | None, typer.Option(help="Teacher file; the bundled Maze2D planner by default.")
]


def main() -> None:
    """Run the command line; a Muninn error is one clear line and exit code 2."""
    try:
        app()
    except (MuninnError, OSError) as error:
        console.print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)


@app.command()
def demo(
    calls: Annotated[int, typer.Option(help="Fresh calls to certify on.")] = 400,
    test_calls: Annotated[int, typer.Option(help="Held-out calls to plan.")] = 220,
    timed: Annotated[int, typer.Option(help="Batch-1 calls to time per method.")] = 120,
    tolerance: ToleranceOption = 0.002,
    risk: RiskOption = 0.05,
    confidence: ConfidenceOption = 0.95,
    seed: Seed = 7,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
) -> None:
    """Certify the bundled Maze2D planner live, race it against the alternatives, write a report."""
    from muninn.certify.calibrate import calibrate as certify
    from muninn_bench.report.page import write_report
    from muninn_bench.report.tables import print_result
    from muninn_bench.studies.demo import CALIBRATE, MazeStudy, bundled_family
    from muninn_bench.tasks.maze2d.planner import bundled_teacher

    study = MazeStudy.of(bundled_teacher(), seed)
    journal = out / "calibration.jsonl"
    console.print(f"[bold]1. Certify[/] on {calls} fresh calls: {tolerance:g} at risk {risk:g}")
    certificate = certify(
        study.planner,
        study.contexts(CALIBRATE, calls),
        tolerance=tolerance,
        risk=risk,
        confidence=confidence or None,
        family=bundled_family(seed),
        seed=seed,
        resume=journal,
    )
    certificate.save(out / "maze2d.muninn.safetensors")
    journal.unlink()  # finished: the next demo certifies anew
    console.print(certificate.promise())
    console.print(f"[bold]2. Plan[/] {test_calls} held-out calls with every method")
    result = study.evaluate(
        certificate,
        out,
        calls=test_calls,
        timed=timed,
        drive=True,
        command=command_line(),
    )
    print_result(console, result)
    report_path = write_report(out)
    console.print(f"[bold]3. Read[/] {report_path} and {out / 'result.json'}")


@app.command()
def train(
    out: Annotated[Path, typer.Argument(help="Folder for the teacher, its curve and checkpoint.")],
    data: Annotated[Path, typer.Option(help="Data file; made if it does not exist.")] = Path(
        "data/maze2d-large.npz"
    ),
    runs: Annotated[int, typer.Option(help="Runs to record if the data file is made.")] = 30_000,
    minutes: Annotated[float, typer.Option(help="Time budget of the training.")] = 15.0,
    resume: Annotated[Path | None, typer.Option(help="Checkpoint to continue from.")] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    seed: Seed = 0,
) -> None:
    """Train a Maze2D teacher; records the data first where it is missing."""
    from muninn_bench.networks.train import TrainingConfig
    from muninn_bench.networks.train import train as fit
    from muninn_bench.tasks.maze2d.data import generate

    if not data.exists():
        generate(data, runs, seed, processes=2)
    config = TrainingConfig(
        data=data,
        out=out,
        minutes=minutes,
        resume=resume,
        device=device,
        fast=device == "cuda",
        seed=seed,
    )
    console.print(f"wrote {fit(config)}")


@app.command()
def calibrate(
    out: Annotated[Path, typer.Argument(help="Certificate file to write.")],
    calls: Annotated[int, typer.Option(help="Calls in all, tuning included.")] = 600,
    tolerance: ToleranceOption = 0.05,
    risk: RiskOption = 0.05,
    confidence: ConfidenceOption = 0.95,
    metric: MetricOption = "rms_step",
    objective: Annotated[str, typer.Option(help="What tuning minimises: evaluations or time.")] = (
        "evaluations"
    ),
    family: Annotated[Path | None, typer.Option(help="Frozen family file; skips tuning.")] = None,
    save_family: Annotated[Path | None, typer.Option(help="Also write the tuned family.")] = None,
    teacher: TeacherOption = None,
    seed: Seed = 0,
) -> None:
    """Tune and certify a cache for a Maze2D planner; resumes if interrupted."""
    from muninn.certify.calibrate import calibrate as certify
    from muninn.certify.describe import print_certificate
    from muninn_bench.studies import demo as maze_study

    if objective not in ("evaluations", "time"):
        raise InputError(f"--objective is evaluations or time, got {objective!r}")
    if family is not None and save_family is not None:
        raise InputError("--save-family keeps a newly tuned family; leave --family out")
    study = maze_study.MazeStudy.of(_teacher(teacher), seed)
    journal = out.with_suffix(".jsonl")
    certificate = certify(
        study.planner,
        study.contexts(maze_study.CALIBRATE, calls),
        tolerance=tolerance,
        risk=risk,
        confidence=confidence or None,
        metric=metric,
        family=None if family is None else maze_study.load_family(family, seed),
        objective="time" if objective == "time" else "evaluations",
        seed=seed,
        resume=journal,
    )
    certificate.save(out)
    journal.unlink()
    if save_family is not None:
        maze_study.save_family(save_family, certificate.family, seed, command_line())
    print_certificate(console, certificate)


@app.command()
def evaluate(
    certificate: Annotated[Path, typer.Argument(help="Certificate file.")],
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/evaluate"),
    calls: Annotated[int, typer.Option(help="Held-out calls.")] = 500,
    timed: Annotated[int, typer.Option(help="Batch-1 calls to time per method.")] = 50,
    drive: Annotated[bool, typer.Option(help="Drive every plan in the environment.")] = True,
    teacher: TeacherOption = None,
    seed: Seed = 0,
) -> None:
    """Compare a certified planner with full compute, fewer steps and fixed skipping."""
    from muninn.certify.certificate import Certificate
    from muninn_bench.report.tables import print_result
    from muninn_bench.studies.demo import MazeStudy

    study = MazeStudy.of(_teacher(teacher), seed)
    result = study.evaluate(
        Certificate.load(certificate),
        out,
        calls=calls,
        timed=timed,
        drive=drive,
        command=command_line(),
    )
    print_result(console, result)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder with result.json.")]) -> None:
    """Draw a run folder as one self-contained page, report.html."""
    from muninn_bench.report.page import write_report

    console.print(f"wrote {write_report(run)}")


@app.command()
def ablate(
    out: Annotated[Path, typer.Option(help="Folder for tables and plots.")] = Path(
        "results/ablation"
    ),
    raw: Annotated[Path, typer.Option(help="Folder for raw cells; what it holds is kept.")] = Path(
        "runs/ablation"
    ),
    quick: Annotated[bool, typer.Option(help="Every table in miniature, under runs/.")] = False,
    teacher: Annotated[str, typer.Option(help="unet, transformer or both.")] = "both",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    measure: Annotated[
        bool, typer.Option(help="Measure what is missing; without it only tables and plots.")
    ] = True,
) -> None:
    """The published method, its baselines and ours, side by side; resumes if interrupted.

    Plan families in OUT/TEACHER/families.json are used as they are; without it they are tuned.
    """
    from muninn_bench.studies.ablation.settings import FULL, QUICK, TEACHERS
    from muninn_bench.studies.ablation.study import run_study
    from muninn_bench.studies.ablation.write import write_results
    from muninn_bench.tasks.maze2d.planner import bundled_teacher

    if teacher not in (*TEACHERS, "both"):
        raise InputError(f"--teacher is {', '.join(TEACHERS)} or both, got {teacher!r}")
    tuned = out
    if quick:
        raw, out = Path("runs/ablation-quick/raw"), Path("runs/ablation-quick/results")
    for name in TEACHERS if teacher == "both" else (teacher,):
        if measure:
            console.print(f"[bold]{name}[/]: measuring into {raw / name}")
            run_study(
                name,
                bundled_teacher(TEACHERS[name]),
                raw / name,
                QUICK if quick else FULL,
                device=device,
                command=command_line(),
                families=tuned / name / "families.json",
            )
        for line in write_results(raw / name, out / name):
            console.print(line, highlight=False)


def _teacher(path: Path | None) -> Teacher:
    from muninn_bench.networks.teacher import load_teacher
    from muninn_bench.tasks.maze2d.planner import bundled_teacher

    return bundled_teacher() if path is None else load_teacher(path)


if __name__ == "__main__":
    main()
