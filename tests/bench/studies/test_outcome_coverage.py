"""The coverage of promises about outcomes: what it draws is what it says, and a miniature runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from muninn.certify.outcomes import Outcomes
from muninn_bench.report.table import read_csv
from muninn_bench.studies.coverage import outcomes as study
from muninn_bench.studies.coverage.outcomes import COUNTS, LIMITS, SIZES, TUNE


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    _, members = study.family(2000)
    return np.array([study.drive(program, 2000, 3) for program in members.programs])


def test_members_lose_more_and_more_and_some_are_near_every_limit(scores: np.ndarray) -> None:
    falls = (scores[0] > scores).mean(axis=1)
    assert falls[0] == 0.0 and falls[-1] > max(LIMITS) > falls[1]
    assert (np.diff(falls) > -0.003).all()
    assert set(np.unique(scores)) == {0.0, 1.0}


def test_worlds_and_noise_are_functions_of_the_seed(scores: np.ndarray) -> None:
    _, members = study.family(2000)
    assert np.array_equal(study.drive(members.member(2), 2000, 3), scores[2])
    assert not np.array_equal(study.drive(members.member(2), 2000, 4), scores[2])


def test_the_scan_reads_each_purpose_from_its_own_episodes() -> None:
    planner, members = study.family(50)
    driven = {members.member(1).digest: np.arange(TUNE + 10.0) / 100.0}
    units = study.DrawnUnits(planner, Outcomes(study._nobody, 10), driven)
    assert [each.score for each in units.measure(members.member(1), "tune", [0, 3])] == [0.0, 0.03]
    found = units.measure(members.member(1), "certify", [0, 3])
    assert [each.score for each in found] == [TUNE / 100.0, (TUNE + 3) / 100.0]
    assert found[0].evaluations == [COUNTS[0]]


def test_a_cell_counts_what_exceeds_and_knows_the_best() -> None:
    true, own = np.array([0.0, 0.004, 0.02, 0.008]), np.array([0.5, 0.4, 0.3, 0.2])
    rows = [{"member": member, "score_at_least": 0.35, "seen": 100} for member in (0, 1, 1, 2)] + [
        {"member": None, "score_at_least": None, "seen": 0}
    ]
    found = study._cell(0.01, rows, true, own)
    assert found["over"] == 0.25 and found["refused"] == 1
    assert found["own_over"] == 0.25  # the third member's own mean is below
    assert found["best_possible"] == COUNTS[0] and found["reached_best"] == 0.5


def test_a_miniature_writes_its_page(tmp_path: Path) -> None:
    said = study.run_outcome_coverage(tmp_path, "muninn-bench outcome-coverage", repetitions=2)
    assert "Verdicts" in said[0]
    cells = read_csv(tmp_path / "coverage.csv")
    assert len(cells) == 2 * len(LIMITS) * len(SIZES)
    refused = {(c["promise"], c["limit"], c["episodes"]) for c in cells if c["refused"]}
    assert refused == {("harm", 0.01, 100), ("mean", 0.01, 100)}
    assert "True losses of the members" in (tmp_path / "README.md").read_text()
