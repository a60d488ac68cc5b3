"""The suite's tables of several folders, and its page: verdicts, the paper's numbers, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muninn.errors import InputError
from muninn_bench.measure.statistics import excess_p_value
from muninn_bench.report.table import read_csv, write_csv
from muninn_bench.studies.suite.lines import FIDELITY, MEAN, Line
from muninn_bench.studies.suite.page import LEVEL, judged, where_it_matters, write_suite
from muninn_bench.studies.suite.published import PUBLISHED, published
from muninn_bench.studies.suite.rows import COLUMNS, FILES, KEY, _p_value, merge_rows

UNIT = "rms a step of a plan, normalised"


def row(
    method: str, evaluations: float, tolerance: float | None = 0.15, **own: Any
) -> dict[str, Any]:
    known: dict[str, Any] = dict.fromkeys(COLUMNS)
    known |= {
        "task": "hopper", "variant": "diffuser", "sampler": "ddim", "steps": 100,
        "method": method, "tolerance": tolerance, "unit": None if tolerance is None else UNIT,
        "certified": method != "full", "evaluations_mean": evaluations, "violation_rate": 0.02,
        "deviation_mean": 0.01, "score": 50.0, "score_low": 48.0, "score_high": 52.0,
        "episodes": 150, "calls": 1000, "entrant": f"{method}-{evaluations}",
    }  # fmt: skip
    return {**known, **own}


def detail(of: dict[str, Any], **own: Any) -> dict[str, Any]:
    known = {name: of[name] for name in KEY}
    known |= {"violations": 20, "calls": 1000, "p_value": 0.9, "switched": None, "difference": -0.1,
              "difference_low": -1.0, "difference_high": 0.8, "episodes": 150, "program": "any",
              "entrant": of["entrant"]}  # fmt: skip
    return {**known, **own}


def write_folder(folder: Path, rows: list[dict[str, Any]], **changed: Any) -> Path:
    details = [detail(each, **(changed if each["method"] == "muninn" else {})) for each in rows]
    details[0]["p_value"] = None
    fidelity = [
        {"task": each["task"], "variant": each["variant"], "method": f"{FIDELITY}-{name}",
         "evaluations": count, "score": 50.0 - 30.0 / count, "score_low": 40.0, "score_high": 55.0,
         "difference": -30.0 / count, "difference_low": -40.0 / count,
         "difference_high": -20.0 / count, "episodes": 150}
        for each in rows[:1] for name in ("fewsteps", "dpmsolver") for count in (20, 10, 5, 3)
    ]  # fmt: skip
    for name, table in zip(FILES, (rows, details, fidelity), strict=True):
        write_csv(folder / name, table)
    (folder / "raw.safetensors").write_bytes(b"arrays")
    return folder


def rows_of_a_pair(task: str = "hopper", **own: Any) -> list[dict[str, Any]]:
    found = [row("full", 100.0, None), row("muninn", 9.0), row("muninn", 14.0, 0.05)]
    found += [row("fewsteps", 20.0), row("dpmsolver", 12.0), row("dpmsolver", 16.0, 0.05)]
    return [{**each, "task": task, **own} for each in found]


def test_two_folders_become_one_table_and_a_page(tmp_path: Path) -> None:
    folders = [
        write_folder(tmp_path / name, rows_of_a_pair(name)) for name in ("hopper", "walker2d")
    ]
    said = write_suite(folders, tmp_path / "out", "the command")
    assert all(line.startswith("PASS") for line in said) and len(said) == 3
    rows = read_csv(tmp_path / "out" / "rows.csv")
    assert tuple(rows[0]) == COLUMNS and len(rows) == 12
    page = (tmp_path / "out" / "README.md").read_text()
    for text in ("the command", "2 run folders", "fidelity.png", "3 pass, 0 fail", "65.1", "84.6"):
        assert (text in page) == (text != "84.6")
    assert (tmp_path / "out" / "fidelity.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "raw" / "walker2d-diffuser.safetensors").read_bytes() == b"arrays"
    paper = read_csv(tmp_path / "out" / "paper.csv")
    assert [each["paper: Full"] for each in paper] == [65.1, 77.8]
    assert [each["evaluations .15"] for each in paper] == [9, 9]
    with pytest.raises(InputError, match=r"holds no finished run: it lacks one of rows.csv"):
        write_suite([tmp_path / "none"], tmp_path / "out", "")


def test_another_machine_fills_its_column_of_the_same_program_only() -> None:
    here = [row("full", 100.0, None, latency_ms_cpu=400.0), row("muninn", 9.0, latency_ms_cpu=40.0)]
    there = [row("full", 100.0, None, latency_ms_gpu=80.0),
             row("muninn", 9.0, latency_ms_gpu=8.0, entrant="another program")]  # fmt: skip
    merged = merge_rows([here, there], KEY)
    assert [(each["latency_ms_cpu"], each["latency_ms_gpu"]) for each in merged] == [
        (400.0, 80.0), (40.0, None),
    ]  # fmt: skip
    assert merge_rows([there, here], KEY)[0]["latency_ms_cpu"] == 400.0


def failed(rows: list[dict[str, Any]], details: list[dict[str, Any]]) -> list[str]:
    return [str(each) for each in judged(rows, details) if not each.passed]


def test_a_broken_promise_is_found_among_many_by_holm() -> None:
    rows = rows_of_a_pair()
    details = [detail(each) for each in rows]
    assert not failed(rows, details)
    details[1]["p_value"] = LEVEL / len(details) * 0.9
    (said,) = failed(rows, details)
    assert "no promise is broken" in said and "hopper diffuser muninn 0.15" in said
    details[1]["p_value"] = LEVEL / len(details) * 1.1
    assert not failed(rows, details)


def test_ours_may_exceed_the_best_alternative_seldom_and_by_little() -> None:
    rows = rows_of_a_pair()
    rows[1]["evaluations_mean"] = 12.5  # 12 is the best: less than one evaluation more
    said = failed(rows, [detail(each) for each in rows])
    assert len(said) == 1 and "more in 1 of 2 promises (50%, 10% allowed)" in said[0]
    rows[1]["evaluations_mean"] = 13.5
    assert any("1.50 more" in each for each in failed(rows, [detail(each) for each in rows]))
    many = [each for name in map(str, range(10)) for each in rows_of_a_pair(name)]
    many[1]["evaluations_mean"] = 12.5
    assert not failed(many, [detail(each) for each in many])


def test_a_lost_score_is_named() -> None:
    rows = rows_of_a_pair()
    details = [detail(each) for each in rows]
    details[2] |= {"difference": -2.5, "difference_low": -4.0, "difference_high": -1.0}
    (said,) = failed(rows, details)
    assert said == "FAIL  hopper diffuser muninn 0.05: score against Full's: -2.5 [-4, -1] points"


def test_p_values_are_of_what_was_promised() -> None:
    line = Line("muninn", 0.15, UNIT, certified=True, violations=80, calls=1000)
    fall = np.zeros(150)
    assert _p_value(line, fall) == excess_p_value(80, 1000, 0.05)
    assert _p_value(Line("full"), fall) is None
    promised = Line(MEAN, 2.0, "points", certified=True)
    assert _p_value(promised, fall) == 1.0 and _p_value(promised, fall + 3.0) == 0.0
    noise = np.random.default_rng(0).standard_normal(150)
    low, high = (_p_value(promised, noise + middle) for middle in (1.0, 3.0))
    assert low is not None and high is not None and low > 0.99 and high < 1e-6


def test_the_papers_rows_are_those_of_its_table() -> None:
    assert len(PUBLISHED) == 15
    for (task, planner), said in PUBLISHED.items():
        assert said.evaluations < said.steps and said.latency < said.latency_full
        assert 0.0 <= said.score_full - said.score <= 1.0, (task, planner)
        assert said.violations <= 0.05
    assert published("kitchen", "diffuser-complete") == published("kitchen", "diffuser")
    assert published("discs", "diffuser") is None


def test_the_page_says_where_fewer_steps_lose_points(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hopper", rows_of_a_pair())
    fidelity = read_csv(folder / "fidelity.csv")
    for each in fidelity:
        each["difference_high"] = -1.0 if each["evaluations"] == 3 else 1.0
    plain, tuned = where_it_matters(fidelity)
    assert plain.startswith("Plain fewer steps") and plain.endswith(
        "in 1 of 4 cases: hopper diffuser with 3 (-10.0)."
    )
    assert tuned.startswith("Tuned DPM-Solver++")
    for each in fidelity:
        each["difference_high"] = 1.0
    assert all(said.endswith("in 0 of 4 cases.") for said in where_it_matters(fidelity))
