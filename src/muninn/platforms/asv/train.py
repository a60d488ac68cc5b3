"""Train the vessel's planner: ``python -m muninn.platforms.asv.train --minutes M``.

Needs torch, numpy, safetensors and rich alone. Writes ``teacher.safetensors`` and
``training.csv`` into the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from muninn.planners.train import TrainingConfig, train
from muninn.planners.unet import UnetConfig
from muninn.platforms.asv.reference import HORIZON

NETWORK = UnetConfig(channels=4, widths=(128, 160, 192), blocks=3, middle_blocks=1)
"""Sized so that full compute misses the planning period of 1 s on two cores, and a cached program
makes it easily."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m muninn.platforms.asv.train", description=__doc__
    )
    parser.add_argument("--data", type=Path, default=Path("data/asv.npz"))
    parser.add_argument("--out", type=Path, default=Path("models/asv"))
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--pause-minutes", type=float)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--maximum-steps", type=int)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--report-steps", type=int, default=TrainingConfig.report_steps)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--plain", action="store_true", help="neither compile nor use bfloat16")
    options = vars(parser.parse_args(arguments))
    fast = not options.pop("plain")
    print(train(TrainingConfig(**options, horizon=HORIZON, fast=fast, network=NETWORK)))


if __name__ == "__main__":
    main()
