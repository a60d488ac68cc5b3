"""Contexts from iterators and files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from muninn.certify.sources import files_in, gather, read_file
from muninn.errors import InputError


def context(rows: int, value: float = 0.0) -> dict[str, Any]:
    return {"goal": torch.full((rows, 2), value), "map": [torch.zeros(rows, 3)], "name": "maze"}


def test_rows_are_gathered_in_order_from_an_iterator_that_never_ends() -> None:
    taken = 0

    def endless() -> Any:
        nonlocal taken
        for taken in itertools.count(1):
            yield context(2, float(taken))

    whole = gather(endless(), count=5)
    assert whole["goal"][:, 0].tolist() == [1, 1, 2, 2, 3] and whole["map"][0].shape == (5, 3)
    assert whole["name"] == "maze" and taken == 3  # no more than needed was asked for


def test_all_rows_are_taken_without_a_count() -> None:
    assert gather([torch.zeros(1, 2), torch.ones(3, 2)])[:, 0].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("items", "count", "message"),
    [
        ([], None, "there are 0 calls; 1 are needed"),
        ([context(2)], 3, "there are 2 calls; 3 are needed"),
        ([context(2)], 0, "at least 1, got 0"),
        (["left"], None, "context 0 holds no tensor but is str"),
        ([torch.tensor(1.0)], None, "no batch dimension"),
        ([torch.zeros(0, 2)], None, "empty"),
        ([torch.zeros(1, 2), torch.zeros(1, 3)], None, r"context 1 is \(rows, 3\).*\(rows, 2\)"),
        ([torch.zeros(1, 2), torch.zeros(1, 2).double()], None, "context 1 is .*float64"),
        ([context(1), {"goal": torch.zeros(1, 2)}], None, r"context\['map'\]\[0\].*1 is absent"),
        ([torch.ones(1, 1), torch.tensor([[torch.nan]])], None, "context 1 is not finite"),
        (torch.zeros(300, 2), None, r"one tensor \(300, 2\); pass it to calibrate"),
        (iter(torch.zeros(300, 2)), 300, r"context 0 have one dimension.*context\[None\]"),
    ],
)  # fmt: skip
def test_unusable_contexts_are_named(items: Any, count: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gather(items, count)


def write(folder: Path) -> dict[str, torch.Tensor]:
    arrays = {"observation.state": torch.randn(5, 3), "observation.scene": torch.randn(5, 2)}
    np.savez(folder / "b.npz", **{name: value.numpy() for name, value in arrays.items()})
    safetensors.torch.save_file(arrays, folder / "c.safetensors")
    torch.save(arrays, folder / "a.pt")
    (folder / "notes.txt").write_text("not read")
    return arrays


def test_the_three_formats_hold_the_same(tmp_path: Path) -> None:
    arrays = write(tmp_path)
    files = files_in(tmp_path)
    assert [path.name for path in files] == ["a.pt", "b.npz", "c.safetensors"]
    for path in files:
        found = read_file(path)
        assert found.keys() == arrays.keys()
        assert all(torch.equal(found[name], value) for name, value in arrays.items())
    assert gather(map(read_file, files))["observation.state"].shape == (15, 3)


@pytest.mark.parametrize("name", ["a.pt", "b.npz", "c.safetensors"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.95])
def test_a_truncated_file_is_named_and_left_alone(name: str, part: float, tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / name
    rest = path.read_bytes()[: int(part * path.stat().st_size)]
    path.write_bytes(rest)
    with pytest.raises(InputError, match=rf"{name} cannot be read \(.+\); no file was changed"):
        read_file(path)
    assert path.read_bytes() == rest


class Payload:
    """Would run on loading if pickled objects were allowed."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("executed",)


@pytest.mark.parametrize("name", ["a.pt", "b.npz"])
def test_pickled_objects_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.pt":
        torch.save({"observation.state": Payload()}, path)
    else:
        np.savez(path, state=np.array([Payload()], dtype=object))
    with pytest.raises(InputError, match=name):
        read_file(path)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (torch.zeros(3), "Tensor"),
        ({}, "dict"),
        ({"a": torch.zeros(3), "b": torch.zeros(2)}, "'a': 3, 'b': 2"),
        ({"a": torch.zeros(0, 2)}, "'a': 0"),
        ({"a": torch.tensor(1.0)}, "dict"),
        ({"a": 1.0}, "dict"),
    ],
)
def test_other_contents_are_refused(content: Any, seen: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(InputError, match=rf"a\.pt must hold named arrays of one length.*{seen}"):
        read_file(tmp_path / "a.pt")


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not read")
    with pytest.raises(InputError, match=r"holds no \.npz, \.safetensors, \.pt file"):
        files_in(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        files_in(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"notes\.txt cannot be read \(\.txt: only \.npz"):
        read_file(tmp_path / "notes.txt")
