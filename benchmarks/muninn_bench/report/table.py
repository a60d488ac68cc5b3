"""Tables, once: rows as CSV files, as Markdown, and at a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console
from rich.table import Table

from muninn.errors import InputError
from muninn.files import write_whole

Kept = TypeVar("Kept")

_READ: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "float | None": lambda text: float(text) if text else None,
}


def write_csv(path: Path, rows: Sequence[Any], digits: int | None = None) -> Path:
    """Write rows, mappings or dataclasses of one kind; None is an empty entry.

    Args:
        path: file; its folder is made.
        rows: at least one.
        digits: significant digits of floats; all of them by default.
    """
    if not rows:
        raise InputError(f"nothing to write to {path}")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = list(_cells(rows[0]))
    writer.writerow(names)
    for row in rows:
        cells = _cells(row)
        writer.writerow([_text(cells[name], digits) for name in names])
    write_whole(path, stream.getvalue())
    return path


def read_csv(path: Path, kind: type[Kept]) -> list[Kept]:
    """The rows of a file that :func:`write_csv` wrote from dataclasses; none if there is no file.

    Raises:
        InputError: the file holds other columns.
    """
    if not path.is_file():
        return []
    types = {entry.name: str(entry.type) for entry in fields(cast("Any", kind))}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != list(types):
            raise InputError(
                f"{path} has columns {reader.fieldnames}, expected {list(types)}; it was written "
                "by another version: remove it"
            )
        return [
            kind(**{name: _READ[types[name]](text) for name, text in entry.items()})
            for entry in reader
        ]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(markdown(("method", "ms"), [("Full", "12")]))
    | method | ms |
    |---|---|
    | Full | 12 |
    """
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = ""
) -> None:
    """A table for a person: the first column to the left, figures to the right."""
    table = Table(title=title or None, box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _cells(row: Any) -> Mapping[str, Any]:
    if is_dataclass(row) and not isinstance(row, type):
        return {entry.name: getattr(row, entry.name) for entry in fields(row)}
    return cast("Mapping[str, Any]", row)


def _text(value: Any, digits: int | None) -> Any:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value
