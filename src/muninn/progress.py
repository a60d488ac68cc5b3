"""Progress bars for everything long; silent where there is nobody to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
Task = Callable[[str, int | None], Advance]
"""``task(description, total)``; the total is None where nobody knows it beforehand."""


def silent(steps: int) -> None:
    """Tell nobody."""


@contextmanager
def bars(show: bool) -> Iterator[Task]:
    """Yields ``task(description, total) -> advance(steps)``; one bar per task."""
    if not show:
        yield lambda description, total: silent
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, refresh_per_second=4) as progress:

        def task(description: str, total: int | None) -> Advance:
            identifier = progress.add_task(f"{description:<34}", total=total)
            return lambda steps: progress.advance(identifier, steps)

        yield task
