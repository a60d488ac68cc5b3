"""The committed studies: what the page says of them is in their files, and is what they found."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from scipy.stats import binomtest

from muninn.certify.risk import order_statistic

ROOT = Path(__file__).parents[3]
STUDIES = ROOT / "results/closed-loop"
RISK = 0.05
TITLES = {
    "Full, given enough time": "full-instant",
    "Full, real time": "full",
    "Full, real time, held to the deadline": "full-deadline",
    "FewSteps": "fewsteps",
    "Muninn": "muninn-only",
    "Muninn, all escalations": "combined",
}
platforms = pytest.mark.parametrize("platform", sorted(path.name for path in STUDIES.iterdir()))


def rows(platform: str, name: str) -> list[dict[str, str]]:
    with (STUDIES / platform / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def shown(platform: str) -> list[list[str]]:
    """Cells of the table that docs/closed_loop.md has of a platform."""
    page = (ROOT / "docs/closed_loop.md").read_text()
    section = page.split(f"results/closed-loop/{platform}/summary.md")[1].split("\n- ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines[1:]]


def words(platform: str) -> str:
    """What docs/closed_loop.md says below the table of a platform."""
    page = (ROOT / "docs/closed_loop.md").read_text()
    return page.split(f"results/closed-loop/{platform}/summary.md")[1].split("\n### ")[0]


@platforms
def test_the_page_shows_what_was_found(platform: str) -> None:
    found = {row["method"]: row for row in rows(platform, "summary.csv")}
    table = shown(platform)
    assert len(table) >= 5
    for title, success, collisions, seconds, evaluations, latency, beyond in table:
        row = found[TITLES[title]]
        assert float(success) == pytest.approx(100.0 * float(row["success"]), abs=0.05)
        assert float(collisions) == pytest.approx(100.0 * float(row["collision"]), abs=0.05)
        if seconds != "-":
            assert float(seconds) == pytest.approx(float(row["time_to_goal_s"]), abs=0.005)
        assert float(evaluations) == pytest.approx(float(row["evaluations_per_call"]), abs=0.05)
        if "/" in latency:
            p50, p99 = (float(value) for value in latency.split("/"))
            assert p50 == pytest.approx(1e3 * float(row["latency_p50_s"]), abs=0.5)
            assert p99 == pytest.approx(1e3 * float(row["latency_p99_s"]), abs=0.5)
        if beyond:
            assert float(beyond) == pytest.approx(100.0 * float(row["beyond_tolerance"]), abs=0.05)


@platforms
def test_what_is_claimed_of_the_studies(platform: str) -> None:
    methods = {row["method"]: row for row in rows(platform, "summary.csv")}
    assert all(int(row["episodes"]) >= 150 for row in methods.values()) and len(methods) == 9
    assert float(methods["full-instant"]["success"]) >= 0.9
    alone = methods["muninn-only"]
    episodes = int(alone["episodes"])
    beyond = round(episodes * float(alone["beyond_tolerance"]))
    assert binomtest(beyond, episodes, RISK, alternative="greater").pvalue > 0.05
    tests = {(row["first"], row["second"]): row for row in rows(platform, "comparisons.csv")}
    against = tests["full", "muninn-only"]
    assert float(against["worse_p"]) > 0.05
    assert float(against["faster_s"]) > 0.0 and float(against["time_p"]) < 0.05
    assert float(tests["muninn-only", "combined"]["more_collisions_p"]) > 0.05
    # Where the interval of the time won reaches zero, the page says so.
    unsure = float(against["faster_low"]) <= 0.0
    assert ("interval reaches zero" in " ".join(words(platform).split())) == unsure


@platforms
def test_the_verdict_is_that_of_the_counts_and_the_page_repeats_it(platform: str) -> None:
    """ "Promised" is what the order statistic says of the episodes; the page claims no more."""
    for row in rows(platform, "summary.csv"):
        if row["promised"]:
            episodes = int(row["episodes"])
            beyond = round(episodes * float(row["beyond_tolerance"]))
            confirmed = beyond < order_statistic(episodes, RISK, 0.95)
            assert row["promised"] == str(confirmed), row["method"]
            if row["method"] == "muninn-only":
                assert ("Not promised in closed loop" in words(platform)) == (not confirmed)
    for claim in ("no promise can be made", "could not be made", "are kept, but"):
        assert claim not in words(platform)


@platforms
def test_the_page_says_that_its_alternative_was_not_tuned(platform: str) -> None:
    if not (STUDIES / platform / "fewer.json").is_file():  # a study since then has its tuning
        assert "FewSteps (evenly spread, not tuned)" in words(platform)
