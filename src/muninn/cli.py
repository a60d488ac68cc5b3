"""The command line: `muninn --help` lists what it does."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.markup import escape

from muninn.errors import InputError, MuninnError
from muninn.files import require_free, write_whole

console = Console()
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Made = TypeVar("Made")
Target = Annotated[
    str,
    typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns (planner, contexts)."),
]
File = Annotated[Path, typer.Argument(help="Certificate file.")]
Out = Annotated[Path | None, typer.Option(help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")]
Crew = Annotated[
    str, typer.Option(help="Processes that measure: a number, ray, ray:8 or ray://host:10001.")
]


def main(commands: typer.Typer = app) -> None:
    """Run a command line; a Muninn error is one clear line and exit code 2."""
    try:
        commands()
    except (MuninnError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _say_version(wanted: bool) -> None:
    if wanted:
        from muninn.certify.certificate import library_versions

        print(", ".join(f"{name} {version}" for name, version in library_versions().items()))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say versions.")
    ] = False,
) -> None:
    """Certified caching for trajectory diffusion: fast plans, close to full compute."""


@app.command()
def new(
    file: Annotated[Path, typer.Argument(help="Python file to write.")] = Path("my_policy.py"),
    force: Force = False,
) -> None:
    """Write a commented file with a planner, which runs as it is; put your own model into it."""
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise InputError(f"{file} cannot be imported; choose a name such as my_policy.py")
    require_free(file, force)
    template = Path(__file__).with_name("template.txt").read_text()
    write_whole(file, template.replace("FILE", str(file)))
    tried = f"muninn survey {file}:planner --calls 400"
    console.print(f"wrote {file}; it runs as it is: {tried}", soft_wrap=True)


@app.command()
def inspect(certificate: File) -> None:
    """Print a certificate for a person."""
    from muninn.certify.certificate import Certificate
    from muninn.certify.describe import print_certificate

    print_certificate(console, Certificate.load(certificate))


@app.command()
def calibrate(
    target: Target,
    out: File,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest acceptable deviation, in the metric. Required.")
    ] = None,
    risk: Annotated[float, typer.Option(help="Share of calls that may exceed it.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="That the risk is kept.")] = 0.95,
    metric: Annotated[str, typer.Option(help="rms_step, max_step or executed:N.")] = "rms_step",
    objective: Annotated[
        str, typer.Option(help="What tuning minimises: evaluations in the mean, time or worst.")
    ] = "evaluations",
    calls: Annotated[int | None, typer.Option(help="Take the first so many contexts.")] = None,
    seed: Annotated[int, typer.Option(help="Of splits and noise.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Calls run together.")] = 32,
    family: Annotated[Path | None, typer.Option(help="Family to certify, untuned.")] = None,
    save_family: Annotated[Path | None, typer.Option(help="Write the family here.")] = None,
    force: Force = False,
    workers: Crew = "1",
) -> None:
    """Certify the cheapest program of a planner that keeps a promise."""
    for path in (out, save_family):
        require_free(path, force, _file_of(target), family)
    from muninn.certify.calibrate import calibrate as certify
    from muninn.certify.describe import print_certificate
    from muninn.certify.outcomes import Outcomes
    from muninn.certify.target import blamed, load, some
    from muninn.context import batch_size as rows_of
    from muninn.programs.plan import Family

    planner, contexts, file = load(target)
    if tolerance is None and not isinstance(contexts, Outcomes):
        raise InputError(
            "--tolerance is missing: the largest deviation that is acceptable, in units of the "
            "metric; there is no default"
        )
    frozen, saved_by = None, "calibrate --save-family"
    if family is not None:
        frozen = _read(family, "family", saved_by, Family.from_json)
    journal = out.with_name(out.name + ".journal")
    begun = journal.exists()
    try:
        with blamed(file, contexts):
            certificate = certify(
                planner,
                some(contexts, calls),
                tolerance=tolerance,
                risk=risk,
                confidence=confidence,
                metric=metric,
                family=frozen,
                objective=cast(Any, objective),  # another word is an InputError
                seed=seed,
                batch_size=batch_size,
                resume=journal,
                workers=workers,
            )
    except InputError:
        finished = journal.read_text().splitlines()[1:] if journal.exists() else []
        if not begun and all(line.startswith('["examined/') for line in finished):
            journal.unlink(missing_ok=True)  # whatever is mended makes another calibration
        raise
    except KeyboardInterrupt:
        console.print(f"interrupted; run the same command to go on ({journal})", soft_wrap=True)
        raise typer.Exit(130) from None
    if save_family is not None:
        write_whole(save_family, json.dumps(certificate.family.to_json(), indent=1) + "\n")
    certificate.save(out)
    journal.unlink()
    print_certificate(console, certificate, unchecked=False)
    left = 0 if calls is None or isinstance(contexts, int) else (rows_of(contexts) or 0) - calls
    judge = f"muninn evaluate {target} {out}{f' --calls {left}' if left > 0 else ''}"
    console.print(
        f"Next: {judge} judges it by new calls; muninn inspect {out} says what no check covers.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


@app.command()
def survey(
    target: Target,
    metric: Annotated[str, typer.Option(help="rms_step, max_step or executed:N.")] = "rms_step",
    risk: Annotated[float, typer.Option(help="As it will be calibrated.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="As it will be calibrated.")] = 0.95,
    calls: Annotated[int | None, typer.Option(help="Take the first so many contexts.")] = None,
    seed: Annotated[int, typer.Option(help="As it will be calibrated.")] = 0,
    tolerance: Annotated[
        float | None, typer.Option(help="Show the share of calls beyond this one.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it here, as PNG or SVG; needs matplotlib.")
    ] = None,
    out: Out = None,
    force: Force = False,
    workers: Crew = "1",
) -> None:
    """How few evaluations, at which deviation: look before you choose a tolerance."""
    for path in (out, picture):
        require_free(path, force, _file_of(target))
    from muninn.certify.survey import survey as look
    from muninn.certify.surveyed import require_drawing
    from muninn.certify.target import blamed, load, some

    if picture is not None:
        require_drawing()
    planner, contexts, file = load(target)
    with blamed(file, contexts):
        given = some(contexts, calls)
        found = look(
            planner, given, metric=metric, tolerance=tolerance, risk=risk, confidence=confidence,
            seed=seed, workers=workers,
        )  # fmt: skip
    console.print(escape(found.markdown()), highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, json.dumps(found.to_json(), indent=1) + "\n")
    if picture is not None:
        found.picture(picture)


@app.command()
def evaluate(
    target: Target,
    certificate: File,
    calls: Annotated[int | None, typer.Option(help="Take the last so many contexts.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run published methods beside it, tuned on the rest.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of the noise.")] = None,
    out: Out = None,
    force: Force = False,
    workers: Crew = "1",
) -> None:
    """Judge a certificate by fresh calls; exit code 1 says that it is not kept."""
    require_free(out, force, _file_of(target), certificate)
    from muninn.certify.evaluate import evaluate as judge
    from muninn.certify.page import page
    from muninn.certify.target import apart, blamed, load, pointed, some

    planner, contexts, file = load(target)
    with blamed(file, contexts), pointed(None if calls else contexts, certificate):
        if compare:
            fresh, others = apart(contexts, calls)
        else:
            fresh, others = some(contexts, calls, last=True), None
        found = judge(planner, certificate, fresh, compare=others, seed=seed, workers=workers)
    console.print(escape(page(found.to_json())), highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, json.dumps(found.to_json(), indent=1) + "\n")
    raise typer.Exit(0 if found.kept else 1)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="What `muninn evaluate --out` wrote.")],
    out: Out = None,
    force: Force = False,
) -> None:
    """Write a page of Markdown from an evaluation."""
    require_free(out, force, run)
    from muninn.certify.page import page

    text = _read(run, "evaluation", "evaluate --out", page)
    if out is None:
        console.print(escape(text), highlight=False, soft_wrap=True)
    else:
        write_whole(out, text)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
def lerobot(
    context: typer.Context,
    command: Annotated[str, typer.Argument(help="eval, record, rollout or policy-server.")],
    certificate: Annotated[
        Path | None, typer.Option(help="By default muninn.safetensors beside the checkpoint.")
    ] = None,
    on_mismatch: Annotated[
        str, typer.Option(help="Without a certificate that holds: error, or full compute (full).")
    ] = "error",
) -> None:
    """Run a command of LeRobot, its own arguments last, with certified policies."""
    from muninn.adapters.lerobot.commands import run

    def tell(words: str) -> None:
        console.print(f"[bold]muninn:[/] {escape(words)}", highlight=False, soft_wrap=True)

    chosen = cast(Any, on_mismatch)  # another word is an InputError
    try:
        run(command, context.args, certificate=certificate, on_mismatch=chosen, tell=tell)
    except OSError:  # LeRobot's or a robot's, not of a file that was named here
        traceback.print_exc()
        raise typer.Exit(1) from None


def _file_of(target: str) -> Path:
    return Path(target.rpartition(":")[0])


def _read(path: Path, what: str, written_by: str, make: Callable[[Any], Made]) -> Made:
    try:
        return make(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; `muninn {written_by}` writes it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no {what} ({type(error).__name__}: {error})") from error


if __name__ == "__main__":
    main()
