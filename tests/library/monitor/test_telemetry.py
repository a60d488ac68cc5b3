"""Telemetry: whole lines or none, nothing raised into the loop, and what was lost is said."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from muninn.errors import InputError
from muninn.monitor.telemetry import (
    Collector,
    JsonLines,
    Sample,
    Telemetry,
    plain,
    read_lines,
    render,
    serve_metrics,
)
from muninn.record import Record


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path))


def record(rows: int = 2, fallback: str | None = None) -> Record:
    return Record(
        evaluations=np.arange(1, rows + 1),
        evaluated=np.ones((rows, 3), bool),
        estimate=np.linspace(0.1, 0.2, rows),
        fallback=(fallback,) * rows,
        seconds=0.25,
        bound=np.array([math.inf] * rows),
    )


class FullDisk:
    """``os.write`` of a disk that takes ``room`` bytes and then no more."""

    def __init__(self, room: int = 0, short: bool = False) -> None:
        self.room, self.short, self.on = room, short, True
        self._write = os.write

    def __call__(self, descriptor: int, data: bytes) -> int:
        if not self.on:
            return self._write(descriptor, data)
        taken = self._write(descriptor, data[: self.room]) if self.room else 0
        if self.short:
            return taken
        raise OSError(errno.ENOSPC, "No space left on device")


# -- the log ---------------------------------------------------------------------------------


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "new" / "folder" / "calls.jsonl")
    entries = [{"a": i, "text": 'line\nbreak "quoted" ü'} for i in range(5)]
    assert all(log.append(entry) for entry in entries)
    assert lines(log.path) == entries and log.lost == 0
    assert JsonLines(log.path).append({"a": 5})  # another process goes on
    assert [entry["a"] for entry in lines(log.path)] == list(range(6))


def test_numbers_that_json_cannot_say_become_null(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"a": np.array([1.0, np.nan]), "b": -math.inf, "c": np.int64(3), "d": (True, None)})
    assert lines(log.path) == [{"a": [1.0, None], "b": None, "c": 3, "d": [True, None]}]


def test_what_cannot_be_said_is_lost_and_counted(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    assert not log.append({"a": object()})
    assert log.append({"a": 1}) and log.lost == 1
    assert lines(log.path) == [{"kind": "lost", "lines": 1}, {"a": 1}]


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("short", [False, True])
def test_a_full_disk_costs_lines_never_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, short: bool
) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"a": 0})
    disk = FullDisk(room, short)
    monkeypatch.setattr(os, "write", disk)
    assert not any(log.append({"a": i}) for i in (1, 2, 3))
    assert log.lost == 3 and lines(log.path) == [{"a": 0}]
    disk.on = False  # space again
    assert log.append({"a": 4}) and log.append({"a": 5})
    assert lines(log.path) == [{"a": 0}, {"kind": "lost", "lines": 3}, {"a": 4}, {"a": 5}]
    assert log.lost == 3


def test_a_part_that_cannot_be_taken_back_spoils_no_later_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = JsonLines(tmp_path / "log")
    disk = FullDisk(room=5)
    monkeypatch.setattr(os, "write", disk)
    with monkeypatch.context() as inner:
        inner.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
        assert not log.append({"a": 1})
    assert log.path.read_bytes() == b'{"a":'
    disk.on = False
    assert log.append({"a": 2})
    assert lines(log.path) == [{"kind": "lost", "lines": 1}, {"a": 2}]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = JsonLines(tmp_path / "file" / "log")
    assert not log.append({"a": 1}) and log.lost == 1


@given(cut=st.integers(0, 60))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_last_line_costs_that_line_only(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    log = JsonLines(path)
    for i in range(4):
        log.append({"number": i})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    kept = lines(path)
    assert kept == [{"number": i} for i in range(len(kept))]
    assert len(kept) >= 4 - math.ceil(cut / len(b'{"number": 0}\n'))
    log.append({"number": 9})
    assert lines(path) == [*kept, {"number": 9}]


def test_lines_that_are_not_objects_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'3\n{"a": 1}\n\xff\xfe\n\n[1]\n{"a": 2}')
    assert lines(path) == [{"a": 1}, {"a": 2}]


def test_rotation_keeps_the_newest_files_and_whole_lines(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log", limit=40, keep=2)
    for i in range(20):
        assert log.append({"number": i})
        assert log.path.stat().st_size <= 40
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    found = [
        entry["number"] for name in ("log.2", "log.1", "log") for entry in lines(tmp_path / name)
    ]
    assert found == list(range(20 - len(found), 20)) and len(found) >= 5


def test_rotation_without_old_files_and_a_line_beyond_the_limit(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log", limit=10, keep=0)
    assert log.append({"long": "x" * 100}) and log.append({"long": "y" * 100})
    assert lines(log.path) == [{"long": "y" * 100}]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failing_rotation_is_a_lost_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log", limit=20)
    log.append({"number": 1})
    with monkeypatch.context() as inner:
        inner.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "")))
        assert not log.append({"number": 2})
    assert log.append({"number": 3}) and log.lost == 1


@pytest.mark.parametrize("settings", [{"limit": 0}, {"keep": -1}])
def test_limits_are_checked(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="limit >= 1"):
        JsonLines("log", **settings)  # type: ignore[arg-type]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_plain_values_can_always_be_written(value: Any) -> None:
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


# -- calls -----------------------------------------------------------------------------------


def test_a_line_per_call_with_all_that_is_known(tmp_path: Path) -> None:
    telemetry = Telemetry(JsonLines(tmp_path / "log"), robot="r1", clock=lambda: 5.0)
    telemetry.observe(record(), call="x-1", episode="e")
    (line,) = lines(tmp_path / "log")
    assert line == {
        "kind": "call", "robot": "r1", "sequence": 1, "time": 5.0, "seconds": 0.25,
        "evaluations": [1, 2], "estimate": [0.1, 0.2], "bound": [None, None], "rank": None,
        "fallback": [None, None], "call": "x-1", "episode": "e",
    }  # fmt: skip


def test_counters_and_a_clock_that_goes_backwards(tmp_path: Path) -> None:
    times = iter([10.0, 9.0, 9.5, 3.0])
    telemetry = Telemetry(JsonLines(tmp_path / "log"), clock=lambda: next(times))
    for rows, reason in ((1, None), (2, "alarm"), (3, None), (1, None)):
        telemetry.observe(record(rows, reason))
    found = {sample.name: sample.value for sample in telemetry.samples()}
    assert found == {
        "calls": 4, "trajectories": 7, "evaluations": 1 + 3 + 6 + 1, "seconds": 1.0,
        "fallbacks": 2, "clock_jumps": 2, "lines_lost": 0,
    }  # fmt: skip
    assert [line["sequence"] for line in lines(tmp_path / "log")] == [1, 2, 3, 4]


def test_counting_goes_on_without_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", FullDisk())
    telemetry = Telemetry(JsonLines(tmp_path / "log"))
    for _ in range(3):
        telemetry.observe(record())
    found = {sample.name: sample.value for sample in telemetry.samples()}
    assert (found["calls"], found["lines_lost"]) == (3, 3)
    assert len(Telemetry().samples()) == len(telemetry.samples())  # no log at all


# -- Prometheus ------------------------------------------------------------------------------


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels, as prometheus_client's own parser reads them."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_text_is_read_back_by_the_parser_of_prometheus() -> None:
    odd = {"robot": 'a"b\\c\nd'}
    samples = [
        Sample("alarm", "gauge", 1.0, "Line one.\nBack\\slash.", odd),
        Sample("calls", "counter", 2, "Calls.", {"robot": "a", "certificate": "ff"}),
        Sample("alarm", "gauge", 0.0, "ignored", {"robot": "z"}),
        Sample("e", "gauge", math.inf, "E."),
        Sample("f", "gauge", -math.inf, "F."),
        Sample("h", "gauge", 0.125, "H."),
    ]
    text = render(iter(samples))
    assert parsed(text) == {
        ("muninn_alarm", (("robot", odd["robot"]),)): 1.0,
        ("muninn_alarm", (("robot", "z"),)): 0.0,
        ("muninn_calls_total", (("certificate", "ff"), ("robot", "a"))): 2.0,
        ("muninn_e", ()): math.inf,
        ("muninn_f", ()): -math.inf,
        ("muninn_h", ()): 0.125,
    }
    kinds = {found.name: found.type for found in text_string_to_metric_families(text)}
    assert (kinds["muninn_alarm"], kinds["muninn_calls"]) == ("gauge", "counter")
    assert text.count("# TYPE muninn_alarm") == 1 and render([]) == ""
    assert math.isnan(*parsed(render([Sample("g", "gauge", math.nan, "G.")])).values())


def test_robots_share_a_registry_or_have_one_each() -> None:
    robots = [Telemetry(robot=name) for name in "ab"]
    alone = [CollectorRegistry() for _ in robots]
    for registry, robot in zip(alone, robots, strict=True):
        registry.register(Collector(robot.samples))
    together = CollectorRegistry()
    together.register(Collector(*(robot.samples for robot in robots)))
    robots[0].observe(record(), call="after they were registered")
    for registry, seen in zip((*alone, together), ("a", "b", "ab"), strict=True):
        found = parsed(generate_latest(registry).decode())
        calls = {labels: n for (name, labels), n in found.items() if name == "muninn_calls_total"}
        assert calls == {(("robot", robot),): float(robot == "a") for robot in seen}


def test_the_endpoint_answers_and_survives_a_broken_source(
    capfd: pytest.CaptureFixture[str],
) -> None:
    telemetry = Telemetry(robot="r1")
    broken = False

    def samples() -> list[Sample]:
        if broken:
            raise ValueError("broken")
        return telemetry.samples()

    servers = [serve_metrics(samples, port=0), serve_metrics(Telemetry().samples, port=0)]
    address = f"http://127.0.0.1:{servers[0].server_port}/metrics"
    calls = "muninn_calls_total", (("robot", "r1"),)
    try:
        for expected in (0.0, 1.0):
            with urllib.request.urlopen(address, timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=")
                assert parsed(answer.read().decode())[calls] == expected
            telemetry.observe(record())
        broken = True
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(address, timeout=10)
        assert error.value.code == 500
        error.value.close()
        broken = False
        with urllib.request.urlopen(f"{address}?x=1", timeout=10) as answer:
            assert parsed(answer.read().decode())[calls] == 2.0
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
    assert "ValueError: broken" in capfd.readouterr().err  # the reason is not swallowed


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    telemetry = Telemetry()
    telemetry.observe(record())  # counting needs no package
    for ask in (lambda: render(telemetry.samples()), lambda: serve_metrics(telemetry.samples)):
        with pytest.raises(InputError, match=r"muninn-diffusion\[metrics\]"):
            ask()
