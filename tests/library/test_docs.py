"""Pages hold what they say: the examples of docs/paper.md, the verbs of the reference, links."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import muninn
from ablation_cases import write_folder
from muninn_bench.studies.ablation.raw import Raw
from muninn_bench.studies.ablation.study import all_tables

PAPER = Path(__file__).parents[2] / "docs" / "paper.md"


def test_examples_of_the_paper_page() -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(str(PAPER), module_relative=False, optionflags=flags)
    assert result.failed == 0, "what differs is printed above"
    assert result.attempted > 100


def test_the_paper_page_names_every_table_of_the_study(tmp_path: Path) -> None:
    tables = all_tables(Raw(write_folder(tmp_path)))
    written = {re.sub(r"(?<=_)\d[\d.]*$", "", table.name) for table in tables}  # less a tolerance
    _, found, rest = PAPER.read_text().partition("| claim of the paper |")
    assert found
    answers, _, _ = rest.partition("\n\n")
    last_cells = [line.split("|")[-2] for line in answers.splitlines() if line.startswith("|")]
    named = {name for cell in last_cells for name in re.findall(r"`(\w+)(?:\.\.\.)?`", cell)}
    assert named == written


def test_the_reference_has_every_verb_once() -> None:
    listed = re.findall(r"^::: muninn\.(\w+)$", (PAPER.parent / "api/index.md").read_text(), re.M)
    assert sorted(listed) == muninn.__all__


ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "models/**/*.md",
        "benchmarks/**/*.md",
        "results/**/*.md",
    )
    for page in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
