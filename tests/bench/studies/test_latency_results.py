"""What the latency benchmark makes of its times: profile, targets, files; and a whole run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import muninn_bench.studies.latency.study as study
from latency_cases import CONFIG, DEVICE, TINY, row, tiny
from muninn.errors import InputError
from muninn.programs.plan import Program, Static
from muninn.programs.spacing import spread_steps
from muninn_bench.measure import machine
from muninn_bench.report.table import read_csv, write_csv
from muninn_bench.studies.latency import checks, profile
from muninn_bench.studies.latency.measure import add_ratios
from muninn_bench.studies.latency.page import (
    outside_network,
    planner_section,
    summary_table,
    write_latency,
)
from muninn_bench.studies.latency.programs import FORECAST, TunedPrograms
from muninn_bench.studies.latency.results import Row, Target, merge, table, targets
from muninn_bench.studies.latency.variants import VARIANTS, TimedVariant, random_variant
from muninn_bench.studies.latency.ways import (
    run_program,
    ways_for,
)

ROOT = Path(__file__).parents[3]

# -- profile -----------------------------------------------------------------------------------


def test_parts_of_a_call_are_counted_and_the_clocks_taken_off() -> None:
    subject = tiny()
    programs = TunedPrograms(subject, 5)
    methods = {m.name: m for m in ways_for(programs, graphed=False, compiled=False)}
    before = [getattr(*seam) for seams in profile.SEAMS.values() for seam in seams]
    parts = profile.host_parts(methods["static-eager"].make, subject.call(0), DEVICE)
    counts = {part: count for part, (_, count) in parts.items()}
    assert counts["network"] == 5 and counts["weighted sums of a table"] == 1
    assert counts["conditioning"] == 1 + 5  # at the start, after evaluations
    assert counts["reads by the host"] == 1 and "sampler" not in counts
    steps = spread_steps(len(programs.planner.sampler), 5)
    loop = Program(FORECAST, Static(steps))
    make = partial(run_program, programs.planner, loop, "eager")
    parts = profile.host_parts(make, subject.call(0), DEVICE)
    assert [getattr(*seam) for seams in profile.SEAMS.values() for seam in seams] == before
    counts = {part: count for part, (_, count) in parts.items()}
    assert counts["network"] == 5
    # Four gaps, each forecast once and replayed once.
    assert counts["gaps: forecasts and look-back"] == 8
    assert counts["conditioning"] == 1 + 8 + 5  # at the start, after gaps, after evaluations
    assert counts["reads by the host"] == 1
    rows = profile.part_rows("a", "static-eager", "host", parts)
    assert sum(found["share"] for found in rows) == pytest.approx(1.0)
    assert [found["ms"] for found in rows] == sorted((ms for ms, _ in parts.values()), reverse=True)


@pytest.mark.parametrize("subject", ["maze2d-fp32", "transformer-fp32"])
def test_the_committed_profile_is_that_of_its_file(subject: str) -> None:
    folder = ROOT / "results/latency"
    rows = [row for row in read_csv(folder / "cpu_profile.csv") if row["subject"] == subject]
    assert profile.profile_text(rows) == (folder / f"cpu_profile_{subject}.txt").read_text()


# -- targets and files -------------------------------------------------------------------------


def test_targets_by_hand() -> None:
    rows = add_ratios(
        [
            row("full-eager", 600.0),
            row("full-graph", 180.0),
            row("static-graph", 40.0),
            row("gated-graph", 42.0, p99_ms=52.5, evaluations=19.0),
            row("network-graph", 36.4),
        ]
    )
    batch = {"subject": "unet63m-fp16", "batch": 256, "method": "static", "over_full": 3.0}
    batch |= {"ideal": 5.0}
    loose = batch | {"method": "gated, loose cap", "ideal": 4.0}
    found = {(t.subject, t.promise): t for t in targets("cuda", rows, [batch, loose])}
    wide = {promise: t for (subject, promise), t in found.items() if subject == "unet63m-fp16"}
    assert {promise: (t.measured, t.verdict) for promise, t in wide.items()} == {
        "static over Full in one graph": (4.5, "met"),
        "static over Full eager": (15.0, "met"),
        "time outside the network over Full in one graph": (pytest.approx(0.02), "met"),
        "gated over static, time per evaluation": (
            pytest.approx((42 / 19) / (40 / 20)),
            "missed",
        ),
        "gated with a cap, p99 over p50": (pytest.approx(1.25), "missed"),
        "static, batch 256: speed-up over steps / evaluations": (pytest.approx(0.6), "missed"),
        "gated, cap 1.5 x static, batch 256: speed-up over steps / evaluations": (
            None,
            "not measured",
        ),
        "gated, cap 2 x static, batch 256: speed-up over steps / evaluations": (
            pytest.approx(0.75),
            "missed",
        ),
    }
    fewer = [t for t in targets("cuda", rows[:3], []) if "outside the network" in t.promise]
    assert [t.measured for t in fewer] == [None]
    others = [t for (subject, _), t in found.items() if subject != "unet63m-fp16"]
    assert len(others) == 13
    assert {t.verdict for t in others} == {"not measured"}


def test_a_gate_with_its_own_threshold_is_told_beside_the_targets() -> None:
    own = row("gated-own-graph", 20.0, subject="maze2d-fp16", p99_ms=26.0)
    (told,) = [t for t in targets("cuda", [own], []) if "own threshold" in t.promise]
    assert (told.measured, told.limit, told.verdict) == (1.3, None, "for information")
    assert str(told).endswith("p99 over p50: 1.3: for information")
    assert table("target", [told.row()]).endswith("| - | 1.3 | for information |")


def test_targets_on_a_cpu_by_hand() -> None:
    rows = [row("full-eager", 1000.0), row("static-eager", 220.0)]
    rows = add_ratios([found | {"subject": "maze2d-fp32"} for found in rows])
    first, second = targets("cpu", rows, [])
    assert first.measured == pytest.approx((1000 / 220) / 5)
    assert first.verdict == "met"
    assert second.verdict == "not measured"
    assert "0.909, at least 0.9: met" in str(first)


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [row("full-eager", 1.5, memory_mb=2.0), row("dpm-graph", None, note="no, not here")]
    write_csv(tmp_path / "rows.csv", rows)
    assert read_csv(tmp_path / "rows.csv") == rows
    assert read_csv(tmp_path / "none.csv") == []
    with pytest.raises(InputError, match="another version"):
        merge(read_csv(tmp_path / "rows.csv"), [{"subject": "unet63m-fp16", "ms": 1.0}])


def test_a_later_run_replaces_the_subjects_it_measured() -> None:
    old = [row("a", 1.0, subject="x"), row("b", 1.0, subject="x"), row("a", 1.0, subject="y")]
    new = [row("a", 2.0, subject="x")]
    assert merge(old, new) == [new[0], old[2]]


def test_tables_leave_out_what_did_not_run() -> None:
    full = row("full-graph", 177.3, over_eager=3.2)
    rows = [full, full | {"calls": 50}, row("dpm-graph", None, note="no compiler")]
    _, _, text, note = planner_section(rows)
    assert "| full-graph | graph | 20.0 | 177 | - | 177 | 3 | 1 | 0.1 | - | 3.20x | - |" in text
    assert "| 177 | 177 | 177 | 50 | 1 |" in text  # enough calls for a 99th percentile
    assert "dpm" not in text
    assert note == "- dpm-graph (graph): no compiler"
    lines = {line.count("|") for line in text.splitlines()}
    assert lines == {13}
    target = Target("x", "speed-up", 4.4, None, at_least=True)
    assert table("target", [target.row()]).endswith("| x | speed-up | >= 4.4 | - | not measured |")


def test_the_summary_by_hand() -> None:
    first = [
        row("full-graph", 90.0, max_ms=95.0),
        row("static-graph", 20.0, calls=50),
        row("network-graph", 18.0),
    ]
    second = [row("full-graph", 60.0), row("static-last", 9.0), row("dpm-graph", None)]
    rows = [
        *add_ratios([found | {"method_title": "Muninn"} for found in first]),
        *add_ratios([found | {"subject": "other", "title": "Other"} for found in second]),
    ]
    assert summary_table(rows).splitlines()[2:] == [
        "| full-graph, graph | 90 / max 95 | 60 / max 60 |",
        "| **Muninn, graph** | 20 / 20 | - |",
        "| static-last, graph | - | 9 / max 9 |",
        "| Muninn, graph: over Full, graph | 4.50x | - |",
    ]


def test_what_the_profile_leaves_of_steps_over_evaluations() -> None:
    def network(method: str, share: float) -> Row:
        part = {"view": "host", "part": "network", "share": share}
        return {"subject": "a", "method": method, **part}

    rows = [network("full-eager", 0.98), network("static-eager", 0.882)]
    alone = row("network-eager", 1.0, subject="a", over_eager=4.75)
    (line,) = outside_network(rows, [alone])
    assert line.startswith("- `a`: 11.8% of a static call and 2.0% of a full one")
    assert "leaves 0.90 of" in line
    assert line.endswith("the evaluations alone, timed, had 0.95.")
    assert outside_network(rows, [])[0].endswith("evaluations.")
    assert outside_network(rows[:1], [alone]) == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_page_on_engines_shows_the_summary_of_the_results(device: str) -> None:
    page = "docs/engines.md"
    rows = read_csv(ROOT / f"results/latency/{device}.csv")
    shown = (ROOT / page).read_text()
    missing = [line for line in summary_table(rows).splitlines() if line not in shown]
    assert missing == [], f"copy the summary of results/latency/{device}.md into {page}"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_committed_pages_are_those_of_their_files(tmp_path: Path, device: str) -> None:
    """Byte for byte, but for the paragraph above the tables: it says how those runs were made."""
    folder = ROOT / "results/latency"
    for path in folder.glob(f"{device}*.csv"):
        shutil.copy(path, tmp_path)
    write_latency(tmp_path, device, {}, "a test", picture=False)
    for path in sorted(tmp_path.iterdir()):
        made, kept = path.read_text(), (folder / path.name).read_text()
        start = "## Targets" if path.suffix == ".md" else ""
        assert made[made.index(start) :] == kept[kept.index(start) :], path.name


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    for subject, p50 in (("unet63m-fp16", 10.0), ("maze2d-fp16", 20.0), ("unet63m-fp16", 30.0)):
        rows = add_ratios([row("full-graph", p50, subject=subject, title=subject)])
        write_latency(tmp_path, "cuda", {"": rows}, "the command")
    kept = read_csv(tmp_path / "cuda.csv")
    assert [(found["subject"], found["p50_ms"]) for found in kept] == [
        ("unet63m-fp16", 30.0),
        ("maze2d-fp16", 20.0),
    ]
    page = (tmp_path / "cuda.md").read_text()
    assert "the command" in page and "a machine" in page
    assert (tmp_path / "cuda.png").stat().st_size > 0


def test_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("maze2d-fp32", "transformer-fp32"):
        subject = replace(tiny(name), trained=True)  # else there is nothing to draw
        monkeypatch.setitem(VARIANTS, name, lambda device, calls, subject=subject: subject)
    monkeypatch.setattr(study, "sizes", lambda device, smoke: TINY)
    arguments = (tmp_path, "cpu", True, True, "muninn-bench latency", False)
    found = study.run_latency(*arguments)
    assert [target.subject for target in found] == ["maze2d-fp32", "transformer-fp32"]
    assert all(target.measured is not None for target in found)
    names = {path.name for path in tmp_path.iterdir()}
    tables = ("", "_calls", "_batch", "_growth", "_profile")
    assert names == {
        *(f"cpu{table}.csv" for table in tables),
        "cpu.md",
        "cpu.png",
        "cpu_profile_maze2d-fp32.txt",
        "cpu_profile_transformer-fp32.txt",
    }
    page = (tmp_path / "cpu.md").read_text()
    for heading in ("## Targets", "## Batches", "## Growth of cost", "## Where the time goes"):
        assert heading in page
    assert machine.hardware(DEVICE) in page
    before = read_csv(tmp_path / "cpu.csv")
    study.run_latency(
        *arguments[:3], False, *arguments[4:], subjects=["maze2d-fp32"], methods=["static-eager"],
        growth=False, batches=False,
    )  # fmt: skip
    after = read_csv(tmp_path / "cpu.csv")
    own = [found["method"] for found in after if found["subject"] == "maze2d-fp32"]
    assert own == ["full-eager", "static-eager"]
    others = [found for found in before if found["subject"] == "transformer-fp32"]
    assert [found for found in after if found["subject"] == "transformer-fp32"] == others
    with pytest.raises(InputError, match="no method fastest"):
        study.run_latency(*arguments, methods=["fastest"])


def test_checks_are_timed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VARIANTS, "maze2d-fp32", lambda device, calls: tiny())
    (found,) = checks.run_checks(tmp_path, "cpu", 3, "a test")
    assert read_csv(tmp_path / "checks_cpu.csv") == [found]
    assert (found["evaluations"], found["calls"]) == (checks.EVALUATIONS, 3)
    ratio = found["checked_ms_p50"] / found["without_ms_p50"]
    assert found["cost_share"] == pytest.approx(ratio - 1.0)
    assert found["checks_alone_us_p50"] > 0.0
    with pytest.raises(InputError, match="'cpu' or 'cuda'"):
        checks.run_checks(tmp_path, "tpu", 3, "a test")


@pytest.mark.gpu
def test_the_whole_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(device: torch.device, calls: int) -> TimedVariant:
        return random_variant(
            "unet63m-fp16", "a tiny U-Net", CONFIG, 8, "fp16", device, calls, steps=16
        )

    monkeypatch.setitem(VARIANTS, "unet63m-fp16", build)
    monkeypatch.setattr(study, "sizes", lambda device, smoke: TINY)
    study.run_latency(tmp_path, "cuda", True, True, "a test", False, subjects=["unet63m-fp16"])
    rows = {row["method"]: row for row in read_csv(tmp_path / "cuda.csv")}
    assert {row["note"] for row in rows.values()} == {None}
    assert rows["static-graph"]["evaluations"] == rows["gated-graph"]["evaluations"] == 5.0
    assert rows["full-graph"]["deviation_p95"] < 1e-2
    assert rows["static-graph"]["memory_mb"] > 0.0
    parts = read_csv(tmp_path / "cuda_profile.csv")
    assert {row["view"] for row in parts} == {"host", "device"}
