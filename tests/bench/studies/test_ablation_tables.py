"""Tables, plots and pages of the ablation study, on a folder known by construction."""

from __future__ import annotations

import csv
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ablation_cases import CALLS, COUNTS, STEPS, difficulty, make_cell, name_of, write_folder
from muninn.errors import InputError
from muninn_bench.measure.statistics import Estimate
from muninn_bench.report.study_page import table_of
from muninn_bench.report.table import Table
from muninn_bench.studies.ablation import choices, findings, study, tables
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Raw, load_cell, save_cell
from muninn_bench.studies.ablation.study import all_tables, write_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def raw(folder: Path) -> Raw:
    return Raw(folder)


def rows_of(table: Table, **wanted: Any) -> list[dict[str, Any]]:
    rows = [{name: row.get(name) for name in table.header} for row in table.rows]
    return [row for row in rows if all(row[k] == v for k, v in wanted.items())]


# -- tables ----------------------------------------------------------------------------------


def test_promise_ratio_and_verdict(raw: Raw) -> None:
    table = table_of(tables.promise, raw)
    own = choices.certified(raw, "static-0.05", 0.05, 0.05).test
    best = choices.certified(raw, "unipc", 0.05, 0.05).test
    assert own is not None and best is not None
    # The certificate named 30 evaluations of UniPC and refused 20: 21 might do.
    place = choices.certified(raw, "unipc", 0.05, 0.05).place
    refused = raw.family("unipc", CALIBRATE)[place + 1].settings["evaluations"]
    assert refused + 1 < best.evaluations.mean()
    ratio = (refused + 1) / own.evaluations.mean()
    (line,) = [n for n in table.notes if n.startswith("Tolerance 0.05: certified cache, static")]
    assert f"{ratio:.2f} times as many" in line and "UniPC" in line
    assert line.endswith("yes." if ratio >= 2 else "no.")
    spent = [v.value for v in table.column("evaluations") if isinstance(v, Estimate)]
    reuse = [v for v in table.column("reuse") if v is not None]
    assert reuse == pytest.approx([1 - value / STEPS for value in spent])


@pytest.mark.parametrize(("needed", "word"), [(10.0, "yes"), (10.1, "no")])
def test_half_means_at_most_half(needed: float, word: str) -> None:
    spent = {"static-0.05": (needed, needed), "fewsteps": (20.0, 25.0), "unipc": (30.0, 30.0)}
    (line,) = tables.half_notes(0.05, spent)
    assert line.endswith(f"{word}.")
    assert "between 20 and 25" in line


def test_holm_table_counts_and_rejects_nothing_kept(raw: Raw) -> None:
    table = table_of(tables.holm, raw)
    for row in rows_of(table, family="certified cache, static plan"):
        method = f"static-{row['tolerance']:g}"
        cell = choices.certified(raw, method, row["tolerance"], row["risk"]).test
        assert cell is not None
        assert row["violating calls"] == (cell.deviation > row["tolerance"]).sum()
    assert "Rejected: none" in table.notes[0]


def test_a_broken_promise_is_rejected(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "raw"
    shutil.copytree(folder, broken)
    for order, count in enumerate(COUNTS):  # the test calls are three times as hard
        hard = 3 * 2.0 / count**2 * difficulty(TEST)
        name = ("static-0.05", order, {"evaluations": count}, TEST)
        save_cell(broken / "cells", make_cell(name, hard, count))
    table = table_of(tables.holm, Raw(broken))
    assert "Rejected: certified cache, static plan at 0.05" in table.notes[0]


def test_risk_table_mace_is_that_of_its_own_shares(raw: Raw) -> None:
    (tolerance,) = raw.info["risk_tolerances"]
    table = table_of(tables.ii_risk, raw, tolerance)
    (row,) = rows_of(table, program="paper, algorithm")
    shares = [row[f"violations at {risk:g}"].value for risk in raw.risks]
    assert row["MACE"] == pytest.approx(np.mean(np.abs(np.subtract(shares, raw.risks))))
    cell = raw.paper(0.05, 0.2, "algorithm")
    assert cell is not None and shares[-1] == pytest.approx((cell.deviation > 0.05).mean())
    labels = table.column("program")
    assert labels[labels.index("certified cache, static plan") + 1] == "... one member more careful"
    (aged,) = rows_of(table, program="paper, algorithm, age at most 4")
    assert aged["violations at 0.2"] == choices.NOT_MEASURED and aged["MACE"] is not None


def test_sweeps_hold_only_what_they_vary(raw: Raw) -> None:
    assert table_of(tables.iii_sensitivity, raw).column("accounting") == [
        "without (L_t = 1)",
        "with L_t",
    ]
    assert table_of(tables.vi_calibration, raw).column("calibration calls") == [20, 100, 1000]
    assert table_of(tables.vi_calibration, raw).column("quantile") == ["void", "void", "valid"]
    ends = zip(
        *(table_of(tables.v_forbidden, raw).column(name) for name in ("prefix", "suffix")),
        strict=True,
    )
    assert list(ends) == [(0, 0), (2, 0), (4, 4)]


def test_probe_table_shows_pooled_within_and_price(raw: Raw) -> None:
    table = table_of(tables.iv_probes, raw)
    first = rows_of(table, probe="stem-1", score="relative_l1")[0]
    assert first["cost"] == pytest.approx(0.1)
    assert first["pooled correlation"] > 0.95 and abs(first["within step, median"]) < 0.1
    assert isinstance(first["violations"], Estimate)


def test_speed_up_is_a_ratio_of_medians(raw: Raw) -> None:
    cell = raw.find("unipc", evaluations=10)
    assert cell is not None and raw.speed_up(cell) == pytest.approx(0.04 / 0.012)
    quarter = table_of(findings.quarter, raw)
    (row,) = rows_of(quarter, method="UniPC")
    assert row["settings"] == "evaluations 7"  # 9 ms of the 10 allowed; 10 evaluations take 12


def test_equivalent_evaluations_pay_for_the_probe(raw: Raw) -> None:
    table = table_of(tables.vii_ours, raw)
    (row,) = rows_of(table, tolerance=0.05, family="probe gate, our forecast")
    assert row["equivalent evaluations"] == pytest.approx(row["evaluations"].value + STEPS * 0.1)
    for plain in rows_of(table, tolerance=0.05, family="certified cache, static plan"):
        assert plain["equivalent evaluations"] == pytest.approx(plain["evaluations"].value)


def test_compute_that_follows_difficulty_is_seen(raw: Raw) -> None:
    makers = (findings.kf3_correlation, findings.kf3_clearance, findings.kf3_bins)
    correlation, clearance, bins = (table_of(make, raw) for make in makers)
    row = rows_of(correlation, program="paper, algorithm, tolerance 0.05")[0]
    assert row["with clearance"] < -0.95  # clearance was made as 1 / difficulty
    own = rows_of(clearance, program="paper, algorithm, tolerance 0.05")
    assert len(own) == 5 and sum(one["calls"] for one in own) == CALLS[TEST]
    spent = [one["mean evaluations"].value for one in own]
    assert spent == sorted(spent, reverse=True)
    shares = [o["share of calls"] for o in rows_of(bins, program=own[0]["program"])]
    assert sum(shares) == pytest.approx(1.0)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_groups_partition_and_keep_equal_values_together(values: list[int]) -> None:
    data = np.array(values, dtype=np.float64)
    found = findings.groups(data)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(values)))
    assert len(found) <= 5
    for before, after in pairwise(found):
        assert data[before].max() < data[after].min()


def test_coverage_of_both_predictions(raw: Raw) -> None:
    table, charged = table_of(findings.kf4, raw), table_of(findings.kf4_charged, raw)
    (paper,) = rows_of(table, tolerance=0.05, prediction="paper, algorithm")
    expected = (4 * 0.5 * 0.05 * difficulty(TEST) <= 0.05 * 0.9).mean()
    assert paper["covered"].value == pytest.approx(expected, abs=1e-3)
    (bound,) = rows_of(table, tolerance=0.05, prediction="certified bound")
    assert bound["covered"].low < 0.97 and bound["covered"].high > 0.92
    assert len(charged.rows) == STEPS
    for name in charged.header[1:]:
        assert sum(charged.column(name)) == pytest.approx(1.0)


def test_cost_model_by_hand(raw: Raw) -> None:
    table, probes = table_of(findings.overhead, raw), table_of(findings.overhead_probe, raw)
    row = rows_of(table)[0]
    assert row["T probe + n core, ms"] == pytest.approx(STEPS * 0.1 + row["evaluations"] * 0.9)
    gap = row["with sampler, ms"] - row["T probe + n core, ms"]
    assert gap == pytest.approx(STEPS * 0.03)
    assert row["error"] == pytest.approx(row["T probe + n core, ms"] / row["measured ms"] - 1)
    assert probes.column("network") == ["Net", "Net"] and probes.column("share") == [0.1, 0.02]


# -- files -----------------------------------------------------------------------------------


def test_results_are_complete_and_parse_back(folder: Path, tmp_path: Path) -> None:
    names = write_results(folder, tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    assert {"holm.csv", "frontier.csv", "frontier.png", "reliability.png"} <= set(names)
    for table in all_tables(Raw(folder)):
        with (tmp_path / f"{table.name}.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == len(table.rows), table.name
        for name in table.header:
            for parsed, value in zip(rows, table.column(name), strict=True):
                plain = value.value if isinstance(value, Estimate) else value
                if isinstance(plain, float) and not math.isnan(plain):
                    assert float(parsed[name]) == pytest.approx(plain, rel=1e-5)
                if isinstance(value, Estimate):
                    assert float(parsed[f"{name} low"]) <= float(parsed[f"{name} high"])
    readme = (tmp_path / "README.md").read_text()
    assert "nan" not in readme.lower().replace("nano", "") and "Seed: 3" in readme
    template = (Path(study.__file__).parent / "page.md").read_text()
    for line in template.splitlines():
        assert not line.startswith("## ") or f"\n{line}\n" in readme
    for table in all_tables(Raw(folder)):
        assert f"Numbers: [{table.name}.csv]({table.name}.csv)" in readme
    for name in names:
        assert name == "README.md" or f"({name})" in readme


@pytest.mark.parametrize(
    "kept",
    ["static-0.05", "adaptive-0.05", "paper", "fewsteps", "full", "variant-epsilon-1-plain"],
)
def test_partial_folders_are_written_too(folder: Path, tmp_path: Path, kept: str) -> None:
    for cell in Raw(folder).cells:
        if cell.method == kept:
            save_cell(tmp_path / "raw" / "cells", cell)
    shutil.copy(folder / "study.json", tmp_path / "raw")
    names = write_results(tmp_path / "raw", tmp_path / "out")
    assert "README.md" in names and "not measured" in (tmp_path / "out/README.md").read_text()


def test_a_small_run_says_too_few_calls(folder: Path, tmp_path: Path) -> None:
    small = tmp_path / "raw"
    shutil.copytree(folder, small)
    for cell in Raw(small).cells:
        few = 40 if cell.stream == CALIBRATE else 24
        spent = cell.evaluations[:few]
        save_cell(small / "cells", make_cell(name_of(cell), cell.deviation[:few], spent))
    write_results(small, tmp_path / "out")
    assert choices.TOO_FEW in (tmp_path / "out" / "promise.csv").read_text()
    assert "No certificate could be tested." not in (tmp_path / "out/README.md").read_text()


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no measured cell"):
        write_results(tmp_path, tmp_path / "out")


def test_a_file_that_is_no_cell_is_an_error(folder: Path, tmp_path: Path) -> None:
    """Another safetensors file, and a cell whose arrays are those of another version."""
    cell = Raw(folder).cells[0]
    older = {"cell": json.dumps({"key": {"method": cell.method}, "device": "cpu"})}
    for metadata in (None, older):
        save_file({"deviation": cell.deviation}, tmp_path / "one.safetensors", metadata)
        with pytest.raises(InputError, match="is not a cell of this study"):
            load_cell(tmp_path / "one.safetensors")
