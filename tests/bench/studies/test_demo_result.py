"""README's demo table is the committed run of the demo, number by number."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from muninn_bench.report.tables import markdown_table

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results/maze2d/demo.json").read_text())
    return found


def test_readme_shows_the_table_of_the_result(result: dict[str, Any]) -> None:
    table = markdown_table(result)
    readme = (ROOT / "README.md").read_text()
    assert table in readme, f"put this table into README.md:\n{table}"
    assert readme.count("| method | evaluations |") == 1


def test_readme_says_of_the_demo_what_the_result_says(result: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text()
    for words in (
        f"**{result['speedup']:.1f} times faster than Full**",
        f"{result['timed_calls']} calls each",
        f"{result['test_calls']} held-out calls",
        f"**at most {result['risk']:.0%} of\ncalls deviate by more than {result['tolerance']:g}**",
    ):
        assert words in readme, f"README.md does not say {words!r}"


def test_only_tuned_alternatives_are_shown() -> None:
    method = {
        "evaluations_mean": 11.0, "latency_ms_p50": 100.4, "latency_ms_p99": 130.0,
        "deviation_p95": 0.00312, "violation_rate": 0.5, "violation_ci95": [0.41, 0.59],
        "task_success": 1.0,
    }  # fmt: skip
    own = "**11** | **100** | **130** | **0.0031** | **50.0%** (41.0 to 59.0)"
    tuned = {"order": 2, "spacing": "t ~ u^1.5", "timesteps": [99, 0], "excess": 1.2, "calls": 16}
    methods = [
        {**method, "name": "full", "tuned": None},
        {**method, "name": "muninn", "tuned": None},
        {**method, "name": "fewsteps"},
        {**method, "name": "dpmsolver", "tuned": tuned},
    ]
    table = markdown_table({"tolerance": 0.002, "methods": methods})
    assert table.splitlines()[2:] == [
        "| Full (your sampler) | 11 | 100 | 130 | 0 | 0% | 100% |",
        f"| **Muninn** | {own} | 100% |",
        "| DPM-Solver++, order 2 | 11 | 100 | 130 | 0.0031 | 50.0% (41.0 to 59.0) | 100% |",
    ]


@pytest.mark.parametrize("teacher", ["unet", "transformer"])
def test_the_step_size_error_is_that_of_its_file(teacher: str) -> None:
    with (ROOT / f"results/maze2d/step_size_{teacher}.csv").open(newline="") as stream:
        found = {int(row["order"]): row for row in csv.DictReader(stream)}
    shown = f"[{float(found[2]['deviation_p50']):.4f}](results/maze2d/step_size_{teacher}.csv)"
    assert shown in (ROOT / "README.md").read_text()


def test_the_paper_page_quotes_the_tuned_solver_as_its_file_says() -> None:
    with (ROOT / "results/maze2d/tuned_11.csv").open(newline="") as stream:
        rows = {row["method"]: row for row in csv.DictReader(stream)}
    assert list(rows) == ["fewsteps", "dpmsolver", "unipc", "taylor"]
    words = f"[{float(rows['dpmsolver']['deviation_p95']):.4f}](../results/maze2d/tuned_11.csv)"
    assert words in (ROOT / "docs/paper.md").read_text(), words
