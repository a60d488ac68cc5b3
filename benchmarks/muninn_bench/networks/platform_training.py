"""The command line that trains a platform's planner; needs torch, numpy, safetensors and rich."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from muninn_bench.networks.train import TrainingConfig, train
from muninn_bench.networks.unet import UnetConfig


def train_platform(
    name: str,
    network: UnetConfig,
    horizon: int,
    batch: int,
    arguments: Sequence[str] | None = None,
) -> None:
    """Parse the command line of ``python -m muninn_bench.tasks.NAME.train`` and train.

    Args:
        name: of the platform; its data is ``data/NAME.npz``, its teacher goes to ``models/NAME``.
        network: architecture.
        horizon: frames of a plan.
        batch: plans per step, unless the command line says otherwise.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m muninn_bench.tasks.{name}.train")
    parser.add_argument("--data", type=Path, default=Path(f"data/{name}.npz"))
    parser.add_argument("--out", type=Path, default=Path(f"models/{name}"))
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--pause-minutes", type=float)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--maximum-steps", type=int)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--report-steps", type=int, default=TrainingConfig.report_steps)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--plain", action="store_true", help="neither compile nor use bfloat16")
    options = vars(parser.parse_args(arguments))
    fast = not options.pop("plain")
    print(train(TrainingConfig(**options, horizon=horizon, fast=fast, network=network)))
