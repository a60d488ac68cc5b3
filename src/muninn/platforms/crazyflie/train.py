"""Train the Crazyflie's planner: ``python -m muninn.platforms.crazyflie.train --minutes M``.

A goal-conditioned Diffuser: it predicts the clean plan (positions and velocities), start and goal
states are inpainted, 100 steps. Needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from muninn.planners.train import TrainingConfig, train
from muninn.planners.unet import UnetConfig
from muninn.platforms.crazyflie.route import HORIZON

NETWORK = UnetConfig(channels=6, widths=(48, 96, 128))
"""On two cores of a CPU 100 evaluations take several planning periods of 0.1 s; 18 fit into one."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m muninn.platforms.crazyflie.train", description=__doc__
    )
    parser.add_argument("--data", type=Path, default=Path("data/crazyflie.npz"))
    parser.add_argument("--out", type=Path, default=Path("models/crazyflie"))
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--maximum-steps", type=int)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--plain", action="store_true", help="neither compile nor use bfloat16")
    options = vars(parser.parse_args(arguments))
    fast = not options.pop("plain")
    print(train(TrainingConfig(**options, fast=fast, horizon=HORIZON, network=NETWORK)))


if __name__ == "__main__":
    main()
