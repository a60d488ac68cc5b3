"""A page: rows become CSV and Markdown, docstrings become text, empty pictures are left out."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muninn_bench.measure.statistics import Estimate, Share
from muninn_bench.report.study_page import picture, table_of, write_page
from muninn_bench.report.table import Row, Table, short

TEMPLATE = """# Page

- risk: {risk:g}
- kind: {kind}

## Rows

Promised is {risk:g},
of {kind}.

table: rows_*

picture: line
A line
at {risk:.0%}.

picture: blank
A reference, and nothing that it refers to.

picture: nothing
Never drawn.

## Empty

table: empty
"""
WORDS = {"risk": 0.05, "kind": "x"}


def rows(kind: str) -> Iterator[Row | str]:
    yield {"name": "a", "share": Share(0.5, 0.25, 0.75), "never": None}
    yield {"name": "b", "share": "not measured", "late": float("nan")}
    yield f"One {kind} was not measured."


@picture(2.0)
def line(source: float, axis: Any, _: None) -> None:
    axis.plot([0, 1], [1, source], label="known")


@picture(2.0)
def blank(source: float, axis: Any, _: None) -> None:
    axis.axhline(source)


@picture(2.0, lambda source: [])
def nothing(source: float, axis: Any, _: None) -> None:
    raise AssertionError("there is no panel to draw")


PICTURES = {draw.__name__: partial(draw, 2.0) for draw in (line, blank, nothing)}


def test_rows_are_rows_and_a_string_is_a_note() -> None:
    made = table_of(rows, "x")
    assert made.name == "rows" and len(made.rows) == 2
    assert made.notes == ["One x was not measured."]
    assert made.header == ["name", "share", "never", "late"]
    assert table_of(rows, "x", name="rows_x").name == "rows_x"


def test_markdown_leaves_out_empty_columns_and_puts_words_left() -> None:
    assert table_of(rows, "x").markdown().splitlines() == [
        "| name | share |",
        "| --- | ---: |",
        "| a | 0.500 [0.250, 0.750] |",
        "| b | not measured |",
    ]


def test_an_interval_takes_three_columns_of_the_file(tmp_path: Path) -> None:
    path = table_of(rows, "x").write(tmp_path)
    with path.open() as stream:
        first, second = csv.DictReader(stream)
    assert [first[f"share{end}"] for end in ("", " low", " high")] == ["0.5", "0.25", "0.75"]
    assert (second["share"], second["share low"], second["late"]) == ("not measured", "", "")


def test_the_page_holds_what_could_be_made(tmp_path: Path) -> None:
    out, template = tmp_path / "out", tmp_path / "page.md"
    template.write_text(TEMPLATE)
    tables = [table_of(rows, "x", name="rows_x"), Table("empty", [])]
    written = write_page(out, template, WORDS, tables, PICTURES)
    assert sorted(written) == ["README.md", "line.png", "rows_x.csv"]
    assert sorted(path.name for path in out.iterdir()) == sorted(written)
    text = (out / "README.md").read_text()
    assert text.startswith(
        "# Page\n\n- risk: 0.05\n- kind: x\n\n## Rows\n\nPromised is 0.05, of x."
    )
    assert "One x was not measured.\n\nNumbers: [rows_x.csv](rows_x.csv)" in text
    assert "![A line at 5%.](line.png)\n\n*A line at 5%.*" in text
    assert "picture" not in text and "Never" not in text
    assert text.endswith("## Empty\n\n(not measured)\n")


def test_unknown_words_are_an_error(tmp_path: Path) -> None:
    template = tmp_path / "page.md"
    template.write_text("# Page\n\n{unknown}\n")
    with pytest.raises(KeyError, match="unknown"):
        write_page(tmp_path, template, WORDS)


def test_numbers_are_short_and_nan_is_empty() -> None:
    assert [short(v) for v in (float("nan"), None, 0.0, 92.468, 123456.7)] == [
        "", "", "0", "92.5", "123457",
    ]  # fmt: skip
    assert short(Estimate(10.0, 10.0, 10.0)) == "10"
    assert short(Share(0.05, 0.04, 0.0612)) == "0.050 [0.040, 0.061]"
