"""What the latency benchmark makes of its times: profile, targets, files; and a whole run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import muninn_bench.studies.latency.study as study
from latency_cases import CONFIG, DEVICE, TINY, row, tiny
from muninn.errors import InputError
from muninn_bench.measure import machine
from muninn_bench.studies.latency import profile
from muninn_bench.studies.latency.measure import add_ratios
from muninn_bench.studies.latency.methods import (
    FULL_EAGER,
    FULL_GRAPH,
    GATED_GRAPH,
    NETWORK_EAGER,
    NETWORK_GRAPH,
    OWN_GRAPH,
    STATIC_EAGER,
    STATIC_GRAPH,
    methods_for,
)
from muninn_bench.studies.latency.programs import Programs
from muninn_bench.studies.latency.rows import (
    BatchRow,
    Call,
    ProfileRow,
    Row,
    merge,
    read_csv,
    write_csv,
)
from muninn_bench.studies.latency.subjects import BUILDERS, Subject, random_subject
from muninn_bench.studies.latency.tables import (
    method_table,
    outside_network,
    summary_table,
    target_table,
)
from muninn_bench.studies.latency.targets import Target, outside, targets
from muninn_bench.studies.latency.write import Results, write_latency

ROOT = Path(__file__).parents[3]

# -- profile -----------------------------------------------------------------------------------


def test_time_is_counted_once_for_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 3.0, 7.0, 8.0, 10.0])
    monkeypatch.setattr(profile.time, "perf_counter", lambda: next(ticks))
    clock = profile.Clock()
    clock.start()
    with clock.part("outer"), clock.part("inner"):
        pass
    clock.stop()
    assert dict(clock.seconds) == {profile.REST: 1.0 + 2.0, "outer": 2.0 + 1.0, "inner": 4.0}
    assert dict(clock.entries) == {"outer": 1, "inner": 1}


def test_parts_of_a_call_are_counted_and_the_clocks_taken_off() -> None:
    subject = tiny()
    programs = Programs(subject, 5)
    methods = {m.name: m for m in methods_for(programs, graphed=False, compiled=False)}
    before = [getattr(owner, name) for owner, name, _ in profile.SEAMS]
    rows = profile.host_parts(subject, methods[STATIC_EAGER], repeats=2)
    assert [getattr(owner, name) for owner, name, _ in profile.SEAMS] == before
    counts = {found.part: found.count for found in rows}
    assert counts[profile.NETWORK] == 5
    assert counts[profile.GAP] == 8  # four gaps, each forecast once and replayed once
    assert counts[profile.CONDITION] == 1 + 8 + 5  # at the start, after gaps, after evaluations
    assert counts[profile.READS] == 1
    assert sum(found.share for found in rows) == pytest.approx(1.0)


def test_kernels_are_grouped_by_name() -> None:
    kernels = [
        ("sm90_xmma_fprop_implicit_gemm_f16", 2.0, 20.0),
        ("void cutlass::Kernel", 1.0, 10.0),
        ("void at::native::GroupNormForwardKernel", 0.5, 20.0),
        ("_gap", 0.25, 19.0),
        ("Memcpy DtoH (Device -> Pageable)", 0.05, 1.0),
        ("something new", 0.2, 1.0),
    ]
    rows = profile.group_kernels("a", "static-graph", kernels, wall_ms=5.0)
    found = {entry.part: (entry.ms, entry.count) for entry in rows}
    assert found == {
        "convolutions and products": (3.0, 30.0),
        "normalisation": (0.5, 20.0),
        "gap kernel": (0.25, 19.0),
        "copies and fills": (0.05, 1.0),
        "other kernels": (0.2, 1.0),
        profile.IDLE: (pytest.approx(1.0), 0.0),
    }
    assert sum(entry.share for entry in rows) == pytest.approx(1.0)


# -- targets and files -------------------------------------------------------------------------


def test_targets_by_hand() -> None:
    rows = add_ratios(
        [
            row(FULL_EAGER, 600.0),
            row(FULL_GRAPH, 180.0),
            row(STATIC_GRAPH, 40.0),
            row(GATED_GRAPH, 42.0, p99_ms=52.5, evaluations=19.0),
            row(NETWORK_GRAPH, 36.4),
        ]
    )
    batch = BatchRow(
        "unet63m-fp16", "U-Net", 256, "static", "graph", 20.0, 9.0, 1.0, 3.0, 5.0, "a machine"
    )
    loose = replace(batch, method="gated, loose cap", over_full=3.0, ideal=4.0)
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
    others = [t for (subject, _), t in found.items() if subject != "unet63m-fp16"]
    assert len(others) == 13
    assert {t.verdict for t in others} == {"not measured"}
    assert outside(rows[:3], "unet63m-fp16") is None


def test_a_gate_with_its_own_threshold_is_told_beside_the_targets() -> None:
    own = row(OWN_GRAPH, 20.0, subject="maze2d-fp16", p99_ms=26.0)
    (told,) = [t for t in targets("cuda", [own], []) if "own threshold" in t.promise]
    assert (told.measured, told.limit, told.verdict) == (1.3, None, "for information")
    assert str(told).endswith("p99 over p50: 1.3: for information")
    assert target_table([told]).endswith("| - | 1.3 | for information |")


def test_targets_on_a_cpu_by_hand() -> None:
    rows = [row(FULL_EAGER, 1000.0), row(STATIC_EAGER, 220.0)]
    rows = add_ratios([replace(found, subject="maze2d-fp32") for found in rows])
    first, second = targets("cpu", rows, [])
    assert first.measured == pytest.approx((1000 / 220) / 5)
    assert first.verdict == "met"
    assert second.verdict == "not measured"
    assert "0.909, at least 0.9: met" in str(first)


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [row(FULL_EAGER, 1.5, memory_mb=2.0), row("dpm-graph", None, note="no, not here")]
    write_csv(tmp_path / "rows.csv", rows)
    assert read_csv(tmp_path / "rows.csv", Row) == rows
    assert read_csv(tmp_path / "none.csv", Row) == []
    with pytest.raises(InputError, match="another version"):
        read_csv(tmp_path / "rows.csv", Call)


def test_a_later_run_replaces_the_subjects_it_measured() -> None:
    old = [row("a", 1.0, subject="x"), row("b", 1.0, subject="x"), row("a", 1.0, subject="y")]
    new = [row("a", 2.0, subject="x")]
    assert merge(old, new) == [new[0], old[2]]


def test_tables_leave_out_what_did_not_run() -> None:
    full = row(FULL_GRAPH, 177.3, over_eager=3.2)
    text = method_table([full, replace(full, calls=50), row("dpm-graph", None)])
    assert "| full-graph | graph | 20.0 | 177 | - | 177 | 3 | 1 | 0.1 | - | 3.20x | - |" in text
    assert "| 177 | 177 | 177 | 50 | 1 |" in text  # enough calls for a 99th percentile
    assert "dpm" not in text
    lines = {line.count("|") for line in text.splitlines()}
    assert lines == {13}
    target = Target("x", "speed-up", 4.4, None, at_least=True)
    assert target_table([target]).endswith("| x | speed-up | >= 4.4 | - | not measured |")


def test_the_summary_by_hand() -> None:
    first = [
        row(FULL_GRAPH, 90.0, max_ms=95.0),
        row(STATIC_GRAPH, 20.0, calls=50),
        row(NETWORK_GRAPH, 18.0),
    ]
    second = [row(FULL_GRAPH, 60.0), row("static-last", 9.0), row("dpm-graph", None)]
    rows = [
        *add_ratios([replace(found, method_title="Muninn") for found in first]),
        *add_ratios([replace(found, subject="other", title="Other") for found in second]),
    ]
    assert summary_table(rows).splitlines()[2:] == [
        "| full-graph, graph | 90 / max 95 | 60 / max 60 |",
        "| **Muninn, graph** | 20 / 20 | - |",
        "| static-last, graph | - | 9 / max 9 |",
        "| Muninn, graph: over Full, graph | 4.50x | - |",
    ]


def test_what_the_profile_leaves_of_steps_over_evaluations() -> None:
    def network(method: str, share: float) -> ProfileRow:
        return ProfileRow("a", method, "host", profile.NETWORK, 1.0, share, 20.0)

    rows = [network(FULL_EAGER, 0.98), network(STATIC_EAGER, 0.882)]
    alone = row(NETWORK_EAGER, 1.0, subject="a", over_eager=4.75)
    (line,) = outside_network(rows, [alone])
    assert line.startswith("- `a`: 11.8% of a static call and 2.0% of a full one")
    assert "leaves 0.90 of" in line
    assert line.endswith("the evaluations alone, timed, had 0.95.")
    assert outside_network(rows, [])[0].endswith("evaluations.")
    assert outside_network(rows[:1], [alone]) == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_page_on_engines_shows_the_summary_of_the_results(device: str) -> None:
    page = "docs/engines.md"
    rows = read_csv(ROOT / f"results/latency/{device}.csv", Row)
    shown = (ROOT / page).read_text()
    missing = [line for line in summary_table(rows).splitlines() if line not in shown]
    assert missing == [], f"copy the summary of results/latency/{device}.md into {page}"


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    for subject, p50 in (("unet63m-fp16", 10.0), ("maze2d-fp16", 20.0), ("unet63m-fp16", 30.0)):
        rows = add_ratios([row(FULL_GRAPH, p50, subject=subject, title=subject)])
        write_latency(tmp_path, "cuda", Results(rows=rows), "the command")
    kept = read_csv(tmp_path / "cuda.csv", Row)
    assert [(found.subject, found.p50_ms) for found in kept] == [
        ("unet63m-fp16", 30.0),
        ("maze2d-fp16", 20.0),
    ]
    page = (tmp_path / "cuda.md").read_text()
    assert "the command" in page and "a machine" in page
    assert (tmp_path / "cuda.png").stat().st_size > 0


def test_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("maze2d-fp32", "transformer-fp32"):
        subject = replace(tiny(name), trained=True)  # else there is nothing to draw
        monkeypatch.setitem(BUILDERS, name, lambda device, calls, subject=subject: subject)
    monkeypatch.setattr(study, "sizes", lambda device, quick: TINY)
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
    before = read_csv(tmp_path / "cpu.csv", Row)
    study.run_latency(
        *arguments[:3], False, *arguments[4:], subjects=["maze2d-fp32"], methods=[STATIC_EAGER],
        growth=False, batches=False,
    )  # fmt: skip
    after = read_csv(tmp_path / "cpu.csv", Row)
    own = [found.method for found in after if found.subject == "maze2d-fp32"]
    assert own == [FULL_EAGER, STATIC_EAGER]
    others = [found for found in before if found.subject == "transformer-fp32"]
    assert [found for found in after if found.subject == "transformer-fp32"] == others
    with pytest.raises(InputError, match="no method fastest"):
        study.run_latency(*arguments, methods=["fastest"])


@pytest.mark.gpu
def test_the_whole_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(device: torch.device, calls: int) -> Subject:
        return random_subject(
            "unet63m-fp16", "a tiny U-Net", CONFIG, 8, device, "fp16", calls, steps=16
        )

    monkeypatch.setitem(BUILDERS, "unet63m-fp16", build)
    monkeypatch.setattr(study, "sizes", lambda device, quick: TINY)
    study.run_latency(tmp_path, "cuda", True, True, "a test", False, subjects=["unet63m-fp16"])
    rows = {row.method: row for row in read_csv(tmp_path / "cuda.csv", Row)}
    assert {row.note for row in rows.values()} == {""}
    assert rows[STATIC_GRAPH].evaluations == rows[GATED_GRAPH].evaluations == 5.0
    assert rows[FULL_GRAPH].deviation_p95 < 1e-2  # type: ignore[operator]
    assert rows[STATIC_GRAPH].memory_mb > 0.0  # type: ignore[operator]
    parts = read_csv(tmp_path / "cuda_profile.csv", ProfileRow)
    assert {row.view for row in parts} == {"host", "device"}
