"""A page: rows become CSV and Markdown, docstrings become text, empty pictures are left out."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muninn_bench.measure.statistics import Estimate, Share
from muninn_bench.report.study_page import picture, table, write_page
from muninn_bench.report.table import Row, Table, short


class Measured:
    """A source with one word."""

    def words(self) -> dict[str, Any]:
        return {"risk": 0.05}


@table("rows_{kind}", "Rows of {kind}", long=True)
def rows(source: Measured, kind: str) -> Iterator[Row | str]:
    """Promised is {risk:g},
    of {kind}.
    """
    yield {"name": "a", "share": Share(0.5, 0.25, 0.75), "never": None}
    yield {"name": "b", "share": "not measured", "late": float("nan")}
    yield "One was not measured."


@picture("rows_x", 2.0)
def line(source: Measured, axis: Any, _: None) -> None:
    """A line at {risk:.0%}."""
    axis.plot([0, 1], [1, 2], label="known")


@picture("rows_x", 2.0)
def blank(source: Measured, axis: Any, _: None) -> None:
    """A reference, and nothing that it refers to."""
    axis.axhline(1.0)


@picture("rows_x", 2.0, lambda source: [])
def nothing(source: Measured, axis: Any, _: None) -> None:
    """Never drawn."""


def test_a_docstring_is_the_text_and_a_string_the_note() -> None:
    made = rows(Measured(), kind="x")
    assert (made.name, made.title) == ("rows_x", "Rows of x")
    assert made.reading == "Promised is 0.05, of x."
    assert made.notes == ["One was not measured."]
    assert made.header == ["name", "share", "never", "late"]


def test_markdown_leaves_out_empty_columns_and_puts_words_left() -> None:
    assert rows(Measured(), kind="x").markdown().splitlines() == [
        "| name | share |",
        "| --- | ---: |",
        "| a | 0.500 [0.250, 0.750] |",
        "| b | not measured |",
    ]


def test_an_interval_takes_three_columns_of_the_file(tmp_path: Path) -> None:
    path = rows(Measured(), kind="x").write(tmp_path)
    with path.open() as stream:
        first, second = csv.DictReader(stream)
    assert [first[f"share{end}"] for end in ("", " low", " high")] == ["0.5", "0.25", "0.75"]
    assert (second["share"], second["share low"], second["late"]) == ("not measured", "", "")


def test_the_page_holds_what_could_be_made(tmp_path: Path) -> None:
    tables = [rows(Measured(), kind="x"), Table("empty", "Empty", "Nothing here.", [])]
    written = write_page(tmp_path, Measured(), ["# Page"], tables, (line, blank, nothing))
    assert sorted(written) == ["README.md", "line.png", "rows_x.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Page\n\n## Rows of x\n\nPromised is 0.05, of x.\n\n<details>")
    assert "![A line at 5%.](line.png)\n\n*A line at 5%.*" in text
    assert text.endswith("## Empty\n\nNothing here.\n\n(not measured)\n")


def test_unknown_words_are_an_error() -> None:
    @table("t", "{unknown}")
    def made(source: Measured) -> Iterator[Row]:
        yield {}

    with pytest.raises(KeyError, match="unknown"):
        made(Measured())


def test_numbers_are_short_and_nan_is_empty() -> None:
    assert [short(v) for v in (float("nan"), None, 0.0, 92.468, 123456.7)] == [
        "", "", "0", "92.5", "123457",
    ]  # fmt: skip
    assert short(Estimate(10.0, 10.0, 10.0)) == "10"
    assert short(Share(0.05, 0.04, 0.0612)) == "0.050 [0.040, 0.061]"
