"""Tables, once: rows as CSV files, as Markdown, and at a terminal."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from muninn.errors import InputError
from muninn.files import write_whole

_WORDS = {"": None, "True": True, "False": False}


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


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that :func:`write_csv` wrote; none if there is no file.

    Numbers, True and False are read as such, an empty entry as None.
    """
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


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
