"""What the tests of the Meta-World study share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn_bench.tasks.metaworld.data import Demonstrations, save_demonstrations


@pytest.fixture(scope="session")
def demonstrations() -> Demonstrations:
    """Two made-up episodes of 20 and 30 steps, every channel varied."""
    generator = np.random.default_rng(0)
    return Demonstrations(
        generator.uniform(-0.3, 0.9, (50, 39)).astype(np.float32),
        generator.uniform(-1.0, 1.0, (50, 4)).astype(np.float32),
        np.array([0, 20, 50]),
    )


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory, demonstrations: Demonstrations) -> Path:
    path = tmp_path_factory.mktemp("data") / "demonstrations.npz"
    parts = [demonstrations.part(at, at + 1) for at in range(demonstrations.episodes)]
    save_demonstrations(
        path, [(part.observations.astype(float), part.actions.astype(float)) for part in parts]
    )
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, demonstrations: Demonstrations) -> Path:
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
