"""The journal: what was finished stays finished, whatever ends the process."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muninn.certify.journal import Journal
from muninn.errors import CalibrationError

IDENTITY = {"planner": {"steps": 20}, "settings": {"risk": 0.05, "tolerance": 0.1}}
FULL_DISK = Path("/dev/full")


def filled(path: Path, entries: int = 5) -> Journal:
    journal = Journal(path, IDENTITY)
    for index in range(entries):
        journal.put(f"certify/{index}", [{"deviation": [0.1 * index], "evaluations": [index]}])
    return journal


def test_without_a_path_it_remembers_in_memory_only(tmp_path: Path) -> None:
    journal = Journal(None, IDENTITY)
    journal.put("a", [1, 2.5])
    assert journal.get("a") == [1, 2.5]
    assert journal.get("b") is None
    assert list(tmp_path.iterdir()) == []


def test_entries_are_on_disk_before_put_returns(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "calibration.jsonl"
    journal = Journal(path, IDENTITY)
    for index in range(3):
        journal.put(str(index), index)
        assert path.read_text().splitlines()[1:] == [f'["{k}", {k}]' for k in range(index + 1)]


def test_floats_come_back_to_the_last_bit(tmp_path: Path) -> None:
    values = [0.1, 1e-300, 2**-1074, 1 / 3, 1e22, 123456789.123456789]
    Journal(tmp_path / "j", IDENTITY).put("values", values)
    assert Journal(tmp_path / "j", IDENTITY).get("values") == values


@pytest.mark.parametrize(
    "other",
    [
        {**IDENTITY, "settings": {"risk": 0.1, "tolerance": 0.1}},
        {**IDENTITY, "planner": {"steps": 21}},
        {**IDENTITY, "more": 1},
        {},
    ],
)
def test_a_journal_of_another_calibration_is_refused_and_left_alone(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    path = tmp_path / "j"
    filled(path)
    before = path.read_bytes()
    with pytest.raises(CalibrationError, match=r"belongs to another calibration.*Delete it, or"):
        Journal(path, other)
    assert path.read_bytes() == before


@given(cut=st.integers(0, 10_000))
def test_a_file_cut_anywhere_keeps_every_whole_entry(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "j"
    filled(path)
    whole = path.read_bytes()
    cut %= len(whole) + 1
    path.write_bytes(whole[:cut])
    lines = whole.split(b"\n")
    if 0 < cut < len(lines[0]):
        # Cannot happen to our own header, which appears in one piece: some other file.
        with pytest.raises(CalibrationError, match="is not a calibration journal"):
            Journal(path, IDENTITY)
        return
    kept = 0
    for place in range(1, 6):
        kept += cut >= sum(len(line) + 1 for line in lines[: place + 1]) - 1
    with Journal(path, IDENTITY) as journal:
        assert len(journal._entries) == kept
        for index in range(kept):
            assert journal.get(f"certify/{index}")[0]["evaluations"] == [index]
        journal.put("next", 1)
    again = Journal(path, IDENTITY)
    assert len(again._entries) == kept + 1 and again.get("next") == 1


def test_garbage_after_whole_lines_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path)
    with path.open("ab") as file:
        file.write(b'["certify/5", [\xff\x00\xfe')
    assert len(Journal(path, IDENTITY)._entries) == 5
    assert json.loads(path.read_text().split("\n")[5])[0] == "certify/4"


@pytest.mark.parametrize("content", [b"\x08\x00\x00\x00{not ours", b"# notes\n- one\n"])
def test_a_file_that_is_no_journal_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "certificate.safetensors"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="not a calibration journal; choose a path of its"):
        Journal(path, IDENTITY)
    assert path.read_bytes() == content


def test_an_empty_file_is_a_journal_to_be(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.touch()
    filled(path)
    assert len(Journal(path, IDENTITY)._entries) == 5


def no_space(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_loses_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    with monkeypatch.context() as patch, filled(path) as journal:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(CalibrationError, match=r"No space left.*free space and run the same"):
            journal.put("certify/5", [1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(CalibrationError, match="No space left"):
            Journal(path, IDENTITY)  # not even the copy without a tail fits
    resumed = Journal(path, IDENTITY)
    assert len(resumed._entries) >= 5
    assert resumed.get("certify/4") is not None


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
def test_a_really_full_device_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    with filled(path) as journal:
        path.rename(tmp_path / "kept")
        path.symlink_to(FULL_DISK)
        with pytest.raises(CalibrationError, match="No space left on device"):
            journal.put("certify/5", [1])
    path.unlink()
    (tmp_path / "kept").rename(path)

    def on_the_device(handle: int, mode: str) -> Any:
        os.close(handle)
        return open(FULL_DISK, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", on_the_device)
        with pytest.raises(CalibrationError, match="No space left on device"):
            Journal(path, IDENTITY)
    assert len(Journal(path, IDENTITY)._entries) == 5


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CalibrationError, match="cannot write the calibration journal"):
        Journal(blocked / "j", IDENTITY)


# -- two at once -----------------------------------------------------------------------------


def test_one_journal_serves_one_calibration_at_a_time_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with filled(path) as journal:
        for identity in (IDENTITY, {}):
            with pytest.raises(CalibrationError, match=r"j is in use.*Wait until it has ended, or"):
                Journal(path, identity)
        journal.put("certify/5", [1])
        Journal(tmp_path / "other", IDENTITY)  # has a lock of its own
    with pytest.raises(CalibrationError, match="belongs to another calibration"):
        Journal(path, {})
    with Journal(path, IDENTITY) as again:
        assert len(again._entries) == 6
    assert {file.name for file in tmp_path.iterdir()} == {"j", "other"}  # no lock is left


HOLDING = """
import sys, time
from muninn.certify.journal import Journal
journal = Journal(sys.argv[1], {})
journal.put("a", 1)
print("held", flush=True)
time.sleep(600)
"""


def test_a_journal_whose_process_was_killed_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(CalibrationError, match="is in use"):
            Journal(path, {})
        process.kill()
    with Journal(path, {}) as journal:
        assert journal.get("a") == 1
