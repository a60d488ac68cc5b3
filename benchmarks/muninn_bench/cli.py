"""The command line of the benchmarks: `muninn-bench --help` lists what it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from muninn.cli import Crew, options
from muninn.cli import main as run_commands
from muninn.errors import InputError
from muninn_bench.commands import (
    Rerun,
    Seed,
    Smoke,
    Variant,
    ablate,
    checks,
    command_line,
    console,
    coverage,
    frontier,
    latency,
    monitor,
    outcome_coverage,
    outcomes,
    soak,
)
from muninn_bench.report.table import print_table
from muninn_bench.studies.closed_loop.command import fly
from muninn_bench.studies.score import score
from muninn_bench.studies.suite.command import suite

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.callback(help="Muninn's worlds, teachers and studies; raw numbers go to results/.")(options)
for _study in (
    fly, ablate, frontier, monitor, coverage, outcomes, outcome_coverage, latency, checks, soak,
    score, suite,
):  # fmt: skip
    app.command()(_study)

TaskOption = Annotated[str, typer.Option("--task", help="A task; `muninn-bench tasks` lists them.")]
RiskOption = Annotated[float, typer.Option(help="Share of calls that may exceed the tolerance.")]


def main() -> None:
    """Run the command line as the library's is run."""
    run_commands(app)


@app.command()
def tasks() -> None:
    """List the tasks, their planners, and the tolerance of each."""
    from muninn_bench.registry import find_task, names

    rows = []
    for name in names():
        try:
            task = find_task(name)
            rows.append((name, ", ".join(task.variants), f"{task.tolerance:g} {task.unit}"))
        except InputError as error:
            rows.append((name, "-", str(error)))
    print_table(console, ("task", "variants", "tolerance"), rows)


@app.command()
def compare(
    task: TaskOption,
    variant: Variant = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/compare/TASK/VARIANT by default.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest deviation; the task's own by default.")
    ] = None,
    risk: RiskOption = 0.05,
    calls: Annotated[int, typer.Option(help="Calls to calibrate on, tuning included.")] = 600,
    episodes: Annotated[int, typer.Option(help="Held-out episodes of every method.")] = 150,
    timed: Annotated[int, typer.Option(help="Single calls to time of every method.")] = 60,
    workers: Crew = "1",
    rerun: Rerun = False,
    seed: Seed = 0,
    smoke: Smoke = False,
) -> None:
    """Certify a task's planner, then run Full and every alternative beside it; resumes."""
    from muninn_bench.registry import find_task, require_variant
    from muninn_bench.report.tables import print_result
    from muninn_bench.studies.certified import Certified, Sizes
    from muninn_bench.studies.compare import compare as run

    found = find_task(task)
    name = require_variant(found, variant)
    sizes = Sizes(calibration=calls, episodes=episodes, timed=timed)
    folder = out or Path("runs", "compare-smoke" if smoke else "compare", task, name)
    study = Certified(
        found, name, folder, sizes, tolerance=tolerance, risk=risk, seed=seed, workers=workers
    )
    if smoke:
        study.shrink()
    certificate = study.certify()
    console.print(certificate.promise())
    print_result(console, run(study, certificate, command_line(), rerun))
    console.print(f"wrote {folder / 'report.html'}, {folder / 'rows.csv'}")
    if rerun:
        console.print(
            f"wrote {folder / 'calls.rrd'}; look at it with: rerun {folder / 'calls.rrd'}"
        )


@app.command()
def demo(
    calls: Annotated[int, typer.Option(help="Fresh calls to certify on.")] = 1000,
    test_calls: Annotated[int, typer.Option(help="Held-out calls to plan.")] = 300,
    timed: Annotated[int, typer.Option(help="Single calls to time of every method.")] = 60,
    tolerance: Annotated[float, typer.Option(help="Largest deviation of a plan, metres.")] = 0.01,
    risk: RiskOption = 0.05,
    seed: Seed = 7,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    fit: Annotated[
        int | None, typer.Option(help="First fit the family that ships again, on so many calls.")
    ] = None,
    smoke: Smoke = False,
) -> None:
    """Survey the bundled planner, certify it live, race it against the alternatives, report."""
    import muninn
    from muninn_bench.registry import find_task
    from muninn_bench.report.tables import print_result
    from muninn_bench.studies.certified import Certified, Sizes, fit_family, load_family
    from muninn_bench.studies.compare import compare as run
    from muninn_bench.task import Stream, context_rows
    from muninn_bench.tasks.discs.task import TASK

    task, variant, family = find_task("discs"), "diffuser", "discs/family.json"
    if fit is not None:
        console.print(f"wrote {fit_family(task, variant, fit, tolerance, command_line())}")
    sizes = Sizes(calibration=calls, episodes=test_calls, timed=timed)
    study = Certified(
        task, variant, out, sizes, tolerance=tolerance, risk=risk, seed=seed,
        family=load_family(family, seed),
    )  # fmt: skip
    if smoke:
        study.shrink()
    console.print("[bold]1. Survey[/]: how few evaluations, how close to full compute?")
    looked = context_rows(task, variant, Stream.TUNE, 80 if smoke else calls, seed)
    found = muninn.survey(
        study.planner, looked, metric=task.metric(variant), check=TASK.good, seed=seed
    )
    print_table(console, *found.table())
    console.print(f"{found.heading()} {found.advice()}", highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    found.picture(out / "survey.png")
    console.print(
        f"[bold]2. Certify[/] on {study.sizes.calibration} fresh calls, a family of programs that "
        "was fitted on other calls beforehand"
    )
    (out / "certificate.muninn.safetensors").unlink(missing_ok=True)  # live, every time
    certificate = study.certify()
    console.print(certificate.promise(), highlight=False)
    console.print(f"[bold]3. Race[/] on {study.sizes.episodes} held-out calls")
    print_result(console, run(study, certificate, command_line()))
    console.print(f"[bold]4. Read[/] {out / 'report.html'}, and see {out / 'survey.png'}")
    console.print("[bold]5. Your own model[/]: put it into the template, then")
    console.print(OWN_MODEL, highlight=False, markup=False)


OWN_MODEL = """\
   muninn new my_policy.py
   muninn survey my_policy.py:planner --calls 400
   muninn calibrate my_policy.py:planner policy.muninn.safetensors --tolerance 0.05 --calls 400"""


@app.command()
def few_steps(
    task: TaskOption,
    variant: Variant = None,
    out: Annotated[Path, typer.Option(help="Table to write.")] = Path("runs/few_steps.csv"),
    calls: Annotated[int, typer.Option(help="Held-out calls.")] = 220,
    count: Annotated[
        list[int] | None, typer.Option(help="Evaluations, may be repeated; 100 is every step.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="An alternative, may be repeated; all by default.")
    ] = None,
    seed: Seed = 0,
    smoke: Smoke = False,
) -> None:
    """How close tuned samplers with fewer steps come to full compute.

    A solver of higher order on every step shows the sampler's own step-size error.
    """
    from muninn_bench.registry import find_task, require_variant
    from muninn_bench.report.table import write_csv
    from muninn_bench.studies.few_steps import COUNTS, few_step_rows

    found = find_task(task)
    rows = few_step_rows(
        found,
        require_variant(found, variant),
        counts=count or (COUNTS[:1] if smoke else COUNTS),
        calls=4 if smoke else calls,
        names=method or None,
        seed=seed,
    )
    console.print(write_csv(out, rows).read_text())


@app.command()
def data(
    task: TaskOption,
    out: Annotated[Path | None, typer.Option(help="File; data/TASK.npz by default.")] = None,
    count: Annotated[int | None, typer.Option(help="Runs; the task's own number if left out.")] = (
        None
    ),
    source: Annotated[
        Path | None, typer.Option(help="A file of others that the data is made from.")
    ] = None,
    workers: Crew = "2",
    seed: Seed = 0,
) -> None:
    """Make the data that a task's planners are trained on; resumes where it was interrupted."""
    path = out or Path(f"data/{task}.npz")
    _trainable(task).make_data(path, count, seed, workers, source)
    console.print(f"wrote {path}")


@app.command()
def train(
    task: TaskOption,
    variant: Variant = None,
    data: Annotated[Path | None, typer.Option(help="Data; data/TASK.npz by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/train/TASK by default.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget of the whole training.")] = None,
    pause_minutes: Annotated[float | None, typer.Option(help="End this part earlier.")] = None,
    steps: Annotated[int | None, typer.Option(help="End after this many steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per step.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu.")] = None,
    fast: Annotated[bool | None, typer.Option(help="Compile, and compute in bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, batches and noise.")] = None,
) -> None:
    """Train a task's planner as its card says; the same command goes on where it stopped."""
    from muninn_bench.measure.machine import find_device
    from muninn_bench.networks.trainer import train as fit
    from muninn_bench.registry import require_variant

    found = _trainable(task)
    name = require_variant(found, variant)
    given = {"minutes": minutes, "pause_minutes": pause_minutes, "steps": steps, "batch": batch,
             "device": device, "fast": fast, "seed": seed}  # fmt: skip
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings = replace(found.training(name, out or Path("runs/train", task, name)), **changes)
    path = data or Path(f"data/{task}.npz")
    if not path.is_file():
        raise InputError(f"{path} is missing; make it with `muninn-bench data --task {task}`")
    find_device(settings.device)
    console.print(f"wrote {fit(found.lesson(name, path, settings), settings)}")


def _trainable(name: str) -> Any:
    from muninn_bench.registry import find_task
    from muninn_bench.task import Trainable

    task = find_task(name)
    if not isinstance(task, Trainable):
        raise InputError(
            f"the task {name} cannot be trained here; its CARD.md says where it is from"
        )
    return task


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder with result.json.")]) -> None:
    """Draw a run folder as one self-contained page, report.html."""
    from muninn_bench.report.page import write_report

    console.print(f"wrote {write_report(run)}")


if __name__ == "__main__":
    main()
