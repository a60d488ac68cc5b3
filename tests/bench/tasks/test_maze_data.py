"""Runs of the real environment start and end where they should, in whatever shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from muninn_bench.networks.runs import load_runs
from muninn_bench.tasks.maze2d.clearance import plan_is_free
from muninn_bench.tasks.maze2d.data import RECORDING, make_runs


def test_a_run_goes_from_rest_to_rest_and_repeats() -> None:
    pytest.importorskip("gymnasium_robotics")
    for index in range(5):
        (run,) = make_runs(seed=3, index=index)
        assert len(run) < 250, "the hold at the goal must fit in 256 frames"
        assert not run[0, 2:4].any()
        assert np.abs(run[-1, 2:4]).max() < 0.05
        assert plan_is_free(run[:, :2], radius=0.1)
        np.testing.assert_array_equal(run, make_runs(seed=3, index=index)[0])


def test_data_does_not_depend_on_sharding_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium_robotics")
    monkeypatch.setattr("muninn_bench.tasks.recorded.SHARD", 2)
    RECORDING.generate(tmp_path / "shards.npz", count=3, seed=1, workers=1)
    monkeypatch.setattr("muninn_bench.tasks.recorded.SHARD", 3)
    RECORDING.generate(tmp_path / "whole.npz", count=3, seed=1, workers=1)
    shards, whole = load_runs(tmp_path / "shards.npz"), load_runs(tmp_path / "whole.npz")
    np.testing.assert_array_equal(shards.frames, whole.frames)
    kept = sorted((tmp_path / "shards").rglob("*.npz"))
    stamps = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr("muninn_bench.tasks.recorded.SHARD", 2)
    RECORDING.generate(tmp_path / "shards.npz", count=3, seed=1, workers=1)
    assert stamps == [path.stat().st_mtime_ns for path in kept]
