"""Data files round-trip; runs of the real environment start and end where they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from muninn_bench.tasks.maze2d.data import generate, load_runs, make_run, save_runs
from muninn_bench.tasks.maze2d.maze import plan_is_free


def test_runs_survive_the_file_to_its_resolution(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    scale = np.array([6.0, 6.0, 6.0, 6.0, 1.0, 1.0])
    runs = [generator.uniform(-scale, scale, (length, 6)) for length in (5, 1, 40)]
    save_runs(tmp_path / "runs.npz", runs)
    loaded = load_runs(tmp_path / "runs.npz")
    assert loaded.offsets.tolist() == [0, 5, 6, 46]
    error = np.abs(loaded.frames - np.concatenate(runs)) / scale
    assert error.max() <= 0.5 / 32767 + 1e-6


def test_missing_data_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"python -m muninn_bench\.tasks\.maze2d\.data"):
        load_runs(tmp_path / "nothing.npz")


def test_a_run_goes_from_rest_to_rest_and_repeats() -> None:
    pytest.importorskip("gymnasium_robotics")
    from muninn_bench.tasks.maze2d.world import MazeWorld

    world = MazeWorld()
    for index in range(5):
        run = make_run(world, seed=3, index=index)
        assert len(run) < 250, "the hold at the goal must fit in 256 frames"
        assert not run[0, 2:4].any()
        assert np.abs(run[-1, 2:4]).max() < 0.05
        assert plan_is_free(run[:, :2], radius=0.1)
        np.testing.assert_array_equal(run, make_run(world, seed=3, index=index))


def test_data_does_not_depend_on_sharding_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium_robotics")
    monkeypatch.setattr("muninn_bench.tasks.maze2d.data.SHARD_RUNS", 2)
    generate(tmp_path / "shards.npz", count=3, seed=1, processes=1)
    monkeypatch.setattr("muninn_bench.tasks.maze2d.data.SHARD_RUNS", 3)
    generate(tmp_path / "whole.npz", count=3, seed=1, processes=1)
    shards, whole = load_runs(tmp_path / "shards.npz"), load_runs(tmp_path / "whole.npz")
    np.testing.assert_array_equal(shards.frames, whole.frames)
    kept = sorted((tmp_path / "shards").rglob("*.npz"))
    stamps = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr("muninn_bench.tasks.maze2d.data.SHARD_RUNS", 2)
    generate(tmp_path / "shards.npz", count=3, seed=1, processes=1)
    assert stamps == [path.stat().st_mtime_ns for path in kept]
