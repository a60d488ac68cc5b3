"""A file is there whole or not at all, whoever writes it, reads it, or is interrupted."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from certify_cases import certificate
from muninn.certify.certificate import Certificate
from muninn.files import Content, write_whole
from muninn_bench.networks.runs import Runs, load_runs, save_runs

PROCESSES, THREADS, SAVES = 3, 2, 60

SAVER = f"""
import sys, threading
from dataclasses import replace
from muninn.certify.certificate import Certificate

source, target, first = sys.argv[1:]
issued, failed = Certificate.load(source), []

def save(seed):
    own = replace(issued, seed=seed)
    for _ in range({SAVES}):
        try:
            own.save(target)
        except Exception as error:
            failed.append(error)

threads = [threading.Thread(target=save, args=(int(first) + i,)) for i in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*failed, sep="; ", end="")
"""


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def savez(file: BinaryIO) -> None:
    np.savez_compressed(file, numbers=np.arange(3))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x00\xff\r\n", b"\x00\xff\r\n"),
        ("a µ\r\nb\n", b"a \xc2\xb5\r\nb\n"),
        (lambda file: file.write(b"written"), b"written"),
        (b"", b""),
    ],
)
def test_bytes_text_and_functions(tmp_path: Path, content: Content, expected: bytes) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    for _ in range(2):  # a new file, then one that is there
        assert write_whole(path, content) == path
        assert path.read_bytes() == expected
    assert os.listdir(path.parent) == ["file"]


def test_formats_that_want_a_file_to_write_into(tmp_path: Path) -> None:
    with np.load(write_whole(tmp_path / "a.npz", savez)) as stored:
        assert stored["numbers"].tolist() == [0, 1, 2]
    state = {"weight": torch.arange(3.0)}
    path = write_whole(str(tmp_path / "a.pt"), partial(torch.save, state))
    assert torch.equal(torch.load(path, weights_only=True)["weight"], state["weight"])


def test_the_longest_name_that_a_folder_takes(tmp_path: Path) -> None:
    path = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    assert write_whole(path, "whole").read_text() == "whole"


def test_a_name_with_another_ending_is_kept_as_it_is(tmp_path: Path) -> None:
    """numpy appends ``.npz`` to names without it; a file object has the name that was asked for."""
    runs = Runs(np.zeros((2, 2), np.float32), np.array([0, 2]), 0.1, 1, 2)
    save_runs(tmp_path / "runs", runs)
    assert os.listdir(tmp_path) == ["runs"]
    assert load_runs(tmp_path / "runs").frames.tolist() == runs.frames.tolist()


# -- permissions -----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_any_new_file(
    tmp_path: Path, usual_umask: None, mask: int
) -> None:
    os.umask(mask)
    assert mode(write_whole(tmp_path / "new", "text")) == 0o666 & ~mask


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o664, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(
    tmp_path: Path, usual_umask: None, kept: int
) -> None:
    path = write_whole(tmp_path / "old", "old")
    path.chmod(kept)
    seen: list[int] = []

    def content(file: BinaryIO) -> None:
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))

    write_whole(path, content)
    assert mode(path) == kept
    assert seen == [kept]  # before the first byte is written: nobody else reads a private file


# -- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = write_whole(tmp_path / "file", "old")

    def content(file: BinaryIO) -> None:
        file.write(b"new, in par")
        file.flush()
        raise error("stop")

    with pytest.raises(error, match="stop"):
        write_whole(path, content)
    with pytest.raises(error, match="stop"):
        write_whole(tmp_path / "other", content)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("step", ["open", "fsync", "replace", "fdopen"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_at_any_step_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    path = write_whole(tmp_path / "file", "old")
    handles = []

    def fail(*args: Any, **more: Any) -> None:
        if step == "fdopen":
            handles.append(args[0])
        raise error("stop")

    with monkeypatch.context() as broken:
        broken.setattr(os, step, fail)
        with pytest.raises(error, match="stop"):
            write_whole(path, "new")
    for handle in handles:
        os.close(handle)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_a_path_that_is_a_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    assert os.listdir(tmp_path) == ["folder"]


# -- several at once -------------------------------------------------------------------------


def test_certificates_saved_to_one_path_by_many(tmp_path: Path) -> None:
    """With one name for all temporary files 78 of 300 saves failed, and readers saw parts."""
    issued = certificate()
    source, target = issued.save(tmp_path / "source"), issued.save(tmp_path / "target")
    variants = [replace(issued, seed=100 + i) for i in range(PROCESSES * THREADS)]
    allowed = {issued.seed, *(own.seed for own in variants)}
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(source), str(target), str(100 + THREADS * i)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    seen: list[int] = []
    broken: list[Exception] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                seen.append(Certificate.load(target).seed)
            except Exception as error:
                broken.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        failed = [saver.communicate(timeout=300)[0] for saver in savers]
    finally:
        over.set()
        for saver in savers:
            saver.kill()
        for reader in readers:
            reader.join()
    assert PROCESSES * THREADS * SAVES >= 300
    assert failed == [""] * PROCESSES
    assert [saver.returncode for saver in savers] == [0] * PROCESSES
    assert broken == []
    assert set(seen) <= allowed and len(set(seen)) > 1  # readers met files that replaced others
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]
