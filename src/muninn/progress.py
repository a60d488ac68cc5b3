"""Progress of everything long, on standard error: what a command prints can be kept apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
Task = Callable[[str, int | None], Advance]
"""``task(description, total)``; the total is None where nobody knows it beforehand."""

EVERY = 15.0
"""Seconds between lines where no terminal can show a bar, as in a log file."""


def silent(steps: int) -> None:
    """Tell nobody."""


@contextmanager
def bars(show: bool) -> Iterator[Task]:
    """Yields ``task(description, total) -> advance(steps)``; one bar per task.

    Where the output is no terminal, a line every :data:`EVERY` seconds says how far it is.
    """
    if not show:
        yield lambda description, total: silent
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as progress:
        told = time.monotonic()

        def task(description: str, total: int | None) -> Advance:
            identifier = progress.add_task(f"{description:<34}", total=total)

            def advance(steps: int) -> None:
                nonlocal told
                progress.advance(identifier, steps)
                if not progress.console.is_terminal and time.monotonic() > told + EVERY:
                    told = time.monotonic()
                    done = next(each for each in progress.tasks if each.id == identifier).completed
                    of = "" if total is None else f" of {total}"
                    progress.console.print(f"{description}: {done:g}{of}")

            return advance

        yield task
