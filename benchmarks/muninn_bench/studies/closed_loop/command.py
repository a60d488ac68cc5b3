"""The command `muninn-bench fly`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from muninn.errors import InputError
from muninn_bench.commands import Rerun, Smoke, Variant, command_line

if TYPE_CHECKING:
    from muninn_bench.platform import Platform

_LIVE = ("full", "fewsteps", "muninn-only")


@dataclass(frozen=True)
class Robot:
    """Builds the platform of a task's variant, here or in another process.

    Raises:
        InputError: the task is unknown, or has no robot on a clock.
    """

    task: str
    variant: str | None = None

    def __call__(self) -> Platform:
        from muninn_bench.registry import find_task, require_variant
        from muninn_bench.task import Timed

        found = find_task(self.task)
        if not isinstance(found, Timed):
            raise InputError(f"{self.task} has no robot on a clock: it cannot be flown")
        return found.platform(require_variant(found, self.variant))


def fly(
    task: Annotated[str, typer.Option(help="crazyflie, asv or maze2d.")],
    variant: Variant = None,
    episodes: Annotated[int, typer.Option(help="Episodes of each method.")] = 5,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, may be repeated; full, fewsteps and muninn-only by default."),
    ] = None,
    rerun: Rerun = False,
    replay: Annotated[
        Path | None, typer.Option(help="Fly a recorded file again, with its latencies.")
    ] = None,
    calibrate: Annotated[bool, typer.Option(help="Make the certificate again, and stop.")] = False,
    study: Annotated[bool, typer.Option(help="The whole comparison, in batches; resumes.")] = False,
    smoke: Smoke = False,
    workers: Annotated[str | None, typer.Option(help="Of --study: a number, ray or ray:8.")] = None,
) -> None:
    """Fly a simulated robot whose clock runs while it plans: a slow planner flies an old plan."""
    from muninn_bench.studies.closed_loop.live import fly_live
    from muninn_bench.studies.closed_loop.study import SMOKE, Paths, Settings, prepare, run_study
    from muninn_bench.studies.closed_loop.write import print_rows, write_results

    if episodes < 1:
        raise InputError(f"--episodes is at least 1, got {episodes}")
    console, build = Console(), Robot(task, variant)
    settings = SMOKE if smoke else Settings()
    settings = replace(settings, workers=workers or settings.workers)
    paths = Paths.of(build().name, smoke)  # a platform that cannot be built costs no certificate
    if calibrate and paths.certificate.exists():  # else one was interrupted: it goes on
        for path in (paths.certificate, *paths.work.glob("scouts*")):
            path.unlink()
    programs = prepare(build, settings, paths, tune=study)
    console.print(programs.certificate.promise())
    if calibrate:
        console.print(f"wrote {paths.certificate}")
    elif study:
        flights, trace = run_study(build, programs, settings, paths)
        out = paths.trace.parent
        print_rows(console, write_results(out, programs, flights, trace, command_line()))
        console.print(f"wrote {out}")
    else:
        fly_live(console, programs, method or list(_LIVE), episodes, rerun, replay)
