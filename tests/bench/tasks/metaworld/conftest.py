"""What the tests of the Meta-World study share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn_bench.networks.runs import Runs, save_runs


@pytest.fixture(scope="session")
def demonstrations() -> Runs:
    """Two made-up episodes of 20 and 30 steps, every channel varied."""
    generator = np.random.default_rng(0)
    seen, acted = generator.uniform(-0.3, 0.9, (50, 39)), generator.uniform(-1.0, 1.0, (50, 4))
    frames = np.concatenate([seen, acted], axis=1).astype(np.float32)
    return Runs(frames, np.array([0, 20, 50]), 1.0 / 80.0, 3, 39)


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory, demonstrations: Runs) -> Path:
    path = tmp_path_factory.mktemp("data") / "demonstrations.npz"
    save_runs(path, demonstrations)
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, demonstrations: Runs) -> Path:
    """A folder with tiny, untrained policies."""
    pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
    from muninn_bench.tasks.metaworld.policy import make_policy, make_processors, save_policy

    folder = tmp_path_factory.mktemp("models")
    for seed, kind in enumerate(("diffusion", "flow")):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            policy: Any = make_policy(down_dims=(16, 32))
        save_policy(folder / kind, policy, *make_processors(policy, demonstrations))
    return folder
