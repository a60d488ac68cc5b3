"""README's demo table is the committed run of the demo, number by number."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muninn_bench.report.table import markdown
from muninn_bench.report.tables import cells, headings

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results/discs/demo.json").read_text())
    return found


def markdown_table(result: dict[str, Any], names: Sequence[str]) -> str:
    """Some methods as README shows them, without the world's own signal."""
    rows = []
    for method in result["methods"]:
        if method["name"] in names:
            row = cells(method, intervals=True)[:-1]
            row[0] += " (your sampler)" if method["name"] == "full" else ""
            rows.append([f"**{cell}**" for cell in row] if method["name"] == "muninn" else row)
    return markdown(headings(result)[:-1], rows)


def test_readme_shows_the_table_of_the_result(result: dict[str, Any]) -> None:
    shown = ("full", "muninn", "fewsteps", "dpmsolver", "taylor")
    table = markdown_table(result, shown)
    assert table in README, f"put this table into README.md:\n{table}"
    assert len(table.splitlines()) - 2 <= 5
    closest = min(result["methods"][2:], key=lambda method: method["deviation_p95"])
    assert closest["name"] in shown and closest["tuned"] is not None


def test_readme_says_of_the_demo_what_the_result_says(result: dict[str, Any]) -> None:
    for words in (
        f"{result['speedup']:.1f} times faster",
        f"{result['timed_calls']} calls each",
        f"{result['test_calls']} held-out calls",
        f"at most {result['risk']:.0%} of calls",
        f"more than {result['tolerance']:g}",
    ):
        assert words in " ".join(README.split()), f"README.md does not say {words!r}"


def test_the_first_screen_is_short() -> None:
    """Words of prose, table and headings; code and what stands for a picture are not read."""
    first, _, _ = README.partition("\n## ")
    left_out = r"```.*?```|^    .*?$|!\[.*?\]\(.*?\)|^\|[-|]*$"
    text = re.sub(left_out, "", first, flags=re.DOTALL | re.M)
    words = [word for word in re.split(r"[\s|]+", text) if re.search(r"\w", word)]
    assert len(words) <= 150, len(words)
    assert len(re.findall(r"^\|[-|]+\|$", first, re.M)) == 1, "one table"
    assert len(re.findall(r"!\[", first)) == 1, "one picture"
    assert sum(line.startswith("| ") for line in first.splitlines()) <= 6  # headings and five rows


@pytest.mark.parametrize("teacher", ["unet", "transformer"])
def test_the_step_size_error_is_that_of_its_file(teacher: str) -> None:
    with (ROOT / f"results/maze2d/step_size_{teacher}.csv").open(newline="") as stream:
        found = {int(row["order"]): row for row in csv.DictReader(stream)}
    shown = f"[{float(found[2]['deviation_p50']):.4f}](results/maze2d/step_size_{teacher}.csv)"
    assert shown in README


def test_the_paper_page_quotes_the_tuned_solver_as_its_file_says() -> None:
    with (ROOT / "results/maze2d/tuned_11.csv").open(newline="") as stream:
        rows = {row["method"]: row for row in csv.DictReader(stream)}
    assert list(rows) == ["fewsteps", "dpmsolver", "unipc", "taylor"]
    words = f"[{float(rows['dpmsolver']['deviation_p95']):.4f}](../results/maze2d/tuned_11.csv)"
    assert words in (ROOT / "docs/paper.md").read_text(), words
