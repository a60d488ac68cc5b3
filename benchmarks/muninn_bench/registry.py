"""Tasks by name: every folder ``tasks/NAME`` with a ``task.py`` is one, imported when asked for.

A hyphen in a name is an underscore in its folder's, which is a Python package.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from muninn.errors import InputError
from muninn_bench import tasks
from muninn_bench.task import Task


def names() -> tuple[str, ...]:
    """The names of all tasks."""
    found = (file.parent.name for place in tasks.__path__ for file in Path(place).glob("*/task.py"))
    return tuple(sorted(name.replace("_", "-") for name in found))


def find_task(name: str) -> Task:
    """The task of a name.

    Raises:
        InputError: there is none, or a package or file that it needs is missing.
    """
    if name not in names():
        raise InputError(f"no task {name!r}; choose from {', '.join(names())}")
    folder = name.replace("-", "_")
    try:
        task: Task = import_module(f"muninn_bench.tasks.{folder}.task").TASK
    except ImportError as error:
        raise InputError(
            f"the task {name} needs packages that are missing ({error}); its card says how to "
            f"install them: {Path(tasks.__path__[0], folder, 'CARD.md')}"
        ) from error
    return task


def require_variant(task: Task, variant: str | None) -> str:
    """A variant of the task; the first by default.

    Raises:
        InputError: the task has no such variant.
    """
    if variant is not None and variant not in task.variants:
        raise InputError(
            f"{task.name} has no variant {variant!r}; choose from {', '.join(task.variants)}"
        )
    return variant or task.variants[0]
