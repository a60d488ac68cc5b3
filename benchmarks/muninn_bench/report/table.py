"""Tables, once: rows as CSV files, as Markdown, and at a terminal."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Terminal

from muninn.errors import InputError
from muninn.files import write_whole
from muninn_bench.measure.statistics import Estimate, Share

Value = str | int | float | Estimate | None
Row = dict[str, Value]

_WORDS = {"": None, "True": True, "False": False}


def write_csv(path: Path, rows: Sequence[Any], digits: int | None = None) -> Path:
    """Write rows, mappings or dataclasses of one kind; None is an empty entry.

    ``digits`` are the significant ones of floats; all by default. The file's folder is made.
    """
    if not rows:
        raise InputError(f"nothing to write to {path}")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    cells = [row if isinstance(row, Mapping) else vars(row) for row in rows]
    writer.writerow(cells[0])
    for row in cells:
        writer.writerow([_rounded(row[name], digits) for name in cells[0]])
    return write_whole(path, stream.getvalue())


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


def markdown(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool] | None = None
) -> str:
    """A table in Markdown; where ``numbers`` says so, a column stands to the right.

    >>> print(markdown(("method", "ms"), [("Full", "12")]))
    | method | ms |
    |---|---|
    | Full | 12 |
    """
    rule = "|" + "---|" * len(headings)
    if numbers is not None:
        rule = "| " + " | ".join("---:" if right else "---" for right in numbers) + " |"
    lines = ["| " + " | ".join(headings) + " |", rule]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def cells(
    columns: str, rows: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and cells of ``heading=pattern|heading=pattern|...``, filled in from each row.

    A pattern is Python's; one without braces is a single value, and needs no heading that is its
    name. A format may be followed by ``*`` and a factor; ``ms`` is three digits, or the whole
    number where it has more. Where a value is None or NaN there is a dash.

    >>> row = {"way": "Full", "p50_ms": 177.31, "p99_ms": 4.234, "won": 0.5, "lost": None}
    >>> cells("way|p50=p50_ms:ms|p99=p99_ms:ms|won={won:.1f*100}%|lost:.1f", [row])
    (('way', 'p50', 'p99', 'won', 'lost'), [['Full', '177', '4.23', '50.0%', '-']])
    """
    named = {}
    for column in columns.split("|"):
        heading, equals, pattern = column.partition("=")
        heading, pattern = (heading, pattern) if equals else (column.partition(":")[0], column)
        named[heading] = pattern if "{" in pattern else f"{{{pattern}}}"
    return tuple(named), [[fill(pattern, row) for pattern in named.values()] for row in rows]


def fill(pattern: str, row: Mapping[str, Any]) -> str:
    """One cell of :func:`cells`."""
    text = ""
    for words, name, spec, _ in Formatter().parse(pattern):
        text += words
        if name is None:
            continue
        if _empty(value := row[name]):
            return "-"
        form, _, factor = (spec or "").partition("*")
        value = float(factor) * value if factor else value
        if form == "ms":
            form = ".0f" if value >= 100.0 else ".3g"
        text += format(value, form)
    return text


def print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = ""
) -> None:
    """A table for a person: the first column to the left, figures to the right."""
    table = Terminal(title=title or None, box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


@dataclass(frozen=True)
class Table:
    """One table of a study's page, and its file.

    A column that a row lacks is empty there, as are None and NaN.
    """

    name: str  # of its file, without ending
    rows: list[Row]
    notes: list[str] = field(default_factory=list)  # sentences computed from the data

    @property
    def header(self) -> list[str]:
        """Names of the columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def column(self, name: str) -> list[Value]:
        """Values of a column, None where a row has none."""
        return [row.get(name) for row in self.rows]

    def markdown(self) -> str:
        """The table alone; columns that are empty throughout are left out, words stand left."""
        columns = {name: self.column(name) for name in self.header}
        shown = {name: own for name, own in columns.items() if any(map(short, own))}
        numbers = [any(not isinstance(v, str | None) for v in own) for own in shown.values()]
        rows = zip(*(map(short, own) for own in shown.values()), strict=True)
        return markdown(list(shown), list(rows), numbers)

    def write(self, folder: Path) -> Path:
        """Write a CSV file; a figure with an interval takes three columns."""
        wide = {n for row in self.rows for n, own in row.items() if isinstance(own, Estimate)}
        rows = []
        for row in self.rows:
            flat: dict[str, Any] = {}
            for name in self.header:
                value = row.get(name)
                own = astuple(value) if isinstance(value, Estimate) else (value, None, None)
                names = (name, f"{name} low", f"{name} high") if name in wide else (name,)
                flat |= {n: None if _empty(v) else v for n, v in zip(names, own, strict=False)}
            rows.append(flat)
        return write_csv(folder / f"{self.name}.csv", rows, digits=6)


def short(value: Value) -> str:
    """A value for people: three digits, interval in brackets, NaN and None empty.

    >>> short(0.051234), short(1234.56), short(Estimate(20.44, 20.0, 21.0)), short(None)
    ('0.0512', '1235', '20.4 [20, 21]', '')
    >>> short(Share(0.0005, 0.0001, 0.0199))
    '0.001 [0.000, 0.020]'
    """
    if isinstance(value, Estimate):
        share = isinstance(value, Share)
        middle, *ends = [f"{one:.3f}" if share else short(one) for one in astuple(value)]
        return middle if ends == [middle, middle] else f"{middle} [{', '.join(ends)}]"
    if _empty(value):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}"
    return str(value)


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _rounded(value: Any, digits: int | None) -> Any:
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value
